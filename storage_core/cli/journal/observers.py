"""`lockgate journal observers`, and reads of the journal for all commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lockgate.storage_core.cli.render import JsonFlag, print_json, print_table
from lockgate.storage_core.errors import ConflictError

if TYPE_CHECKING:
    from lockgate.storage_core.journal.observers.reading_client import Client


AtLeast = Annotated[
    str, typer.Option(metavar="STAMP", help="Read a state with at least this stamp (3.512) or token.")
]


def show(json: JsonFlag = False) -> None:
    """Show how far each observer is behind the primary, and why it is not read."""
    with journal_reads() as client:
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


def journal_reads(at_least: str = "") -> Client:
    """Return a client for reads of the journal.

    Args:
        at_least: Token or stamp of the oldest state to read.

    Raises:
        ConflictError: There is no journal.
    """
    from lockgate.storage_core.journal.observers.process_reader import configured_reads
    from lockgate.storage_core.settings import load_settings

    client = configured_reads(load_settings(), at_least=at_least)
    if client is None:
        raise no_journal()
    return client


def no_journal() -> ConflictError:
    """Return the error of a command that needs a journal."""
    return ConflictError("LOCKGATE_JOURNAL_URL=none: there is no journal; nothing was done")
