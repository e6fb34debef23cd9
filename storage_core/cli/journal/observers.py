"""`lockgate journal observers`: the standbys that take the reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lockgate.storage_core.cli.render import JsonFlag, print_json, print_table
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


def _settings() -> Settings:
    from lockgate.storage_core.settings import load_settings  # noqa: PLC0415 - slow to import

    return load_settings()


def _no_journal() -> ConflictError:
    return ConflictError("LOCKGATE_JOURNAL_URL=none: there is no journal to observe; nothing was done")
