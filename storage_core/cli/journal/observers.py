"""`lockgate journal observers` and `observe`: the copies that take the reads, and the one kept here."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lockgate.storage_core.cli.render import JsonFlag, print_json, print_line, print_table
from lockgate.storage_core.errors import ConflictError

if TYPE_CHECKING:
    from lockgate.storage_core.settings import Settings


AtLeast = Annotated[
    str, typer.Option(metavar="STAMP", help="Read a state that holds this stamp, such as 3.512, or a token.")
]


def show(json: JsonFlag = False) -> None:
    """Show how far each observer is behind the primary, and why one is not read."""
    from lockgate.storage_core.journal.observers import configured_reads  # noqa: PLC0415 - slow to import

    client = configured_reads(_settings())
    if client is None:
        raise _no_journal()
    with client:
        found = client.observers()
    if json:
        print_json(found)
        return
    print_table(
        ("observer", "stamp", "behind", "lag", "why it is not read"),
        [
            (
                status.name,
                status.stamp,
                None if status.behind_entries is None else f"{status.behind_entries} entries",
                None if status.lag_s is None else f"{status.lag_s:.3f} s",
                status.why_down,
            )
            for status in found
        ],
        empty="no observers: every read goes to the primary; see LOCKGATE_OBSERVER_URLS",
    )


def observe(
    *,
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="The copy; it is made if it is missing.")],
    once: Annotated[bool, typer.Option("--once", help="Stop when the copy has caught up.")] = False,
) -> None:
    """Keep a copy of the journal in FILE near the primary, until stopped, for reads on this machine.

    It only reads the primary. It may be killed anywhere, and goes on when it is started again.
    """
    from lockgate.storage_core.journal.observers import open_tailer  # noqa: PLC0415
    from lockgate.storage_core.journal.process_journal import journal_url  # noqa: PLC0415 - slow to import

    settings = _settings()
    if not settings.has_journal:
        raise _no_journal()
    with open_tailer(journal_url(settings), to, settings.journal) as tailer:
        tailer.catch_up()
        print_line(f"caught up; read it with LOCKGATE_OBSERVER_URLS='[\"sqlite:///{to.absolute()}\"]'")
        if not once:
            tailer.run(threading.Event())


def _settings() -> Settings:
    from lockgate.storage_core.settings import load_settings  # noqa: PLC0415 - slow to import

    return load_settings()


def _no_journal() -> ConflictError:
    return ConflictError("LOCKGATE_JOURNAL_URL=none: there is no journal to observe; nothing was done")
