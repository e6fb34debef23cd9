"""Transactions that change a journal without an entry: pruning, restoring, leaving safe mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection

from lockgate.storage_core.failpoints import FAILPOINTS, current_step
from lockgate.storage_core.journal.journal import Journal
from lockgate.storage_core.journal.write.transaction import Head, lock_head


@contextmanager
def maintenance(journal: Journal, verb: str) -> Iterator[tuple[Connection, Head]]:
    """Lock the head, so that no entry is written in the block; commit at its end.

    Args:
        journal: The journal to change.
        verb: Name of the failpoints before and after: `<step>.journal-<verb>.before`.

    Raises:
        JournalUnavailableError: Nothing was applied.
        StateLostError: The database was replaced; nothing was applied.
        OutcomeUnknownError: The commit got no answer.
    """
    point = f"{current_step()}.journal-{verb}"
    FAILPOINTS.hit(f"{point}.before")
    with journal.database.write() as connection:
        yield connection, lock_head(connection, journal.database, journal.known)
    FAILPOINTS.hit(f"{point}.after")
