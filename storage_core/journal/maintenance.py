"""Transactions that change a journal and write no entry: pruning, restoring, leaving safe mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection

from lockgate.storage_core.failpoints import FAILPOINTS, current_step
from lockgate.storage_core.journal.journal import Journal
from lockgate.storage_core.journal.write.transaction import Head, lock_head


@contextmanager
def upkeep(journal: Journal, verb: str) -> Iterator[tuple[Connection, Head]]:
    """Hold the head's lock, so that no entry is written meanwhile; durable when the block has ended.

    Args:
        journal: Which.
        verb: Names the failpoints before and after: `<step>.journal-<verb>.before`.

    Raises:
        JournalUnavailableError: Nothing was applied.
        OutcomeUnknownError: The commit got no answer.
    """
    point = f"{current_step()}.journal-{verb}"
    FAILPOINTS.hit(f"{point}.before")
    with journal.database.write() as connection:
        yield connection, lock_head(connection, journal.database, journal.name)
    FAILPOINTS.hit(f"{point}.after")
