"""Observer: a read-only copy of one journal, such as a PostgreSQL hot standby, that answers reads."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager
from typing import Protocol

from lockgate.storage_core.journal.read.snapshot_read import Reading
from lockgate.storage_core.stamp import Stamp


class Observer(Protocol):
    """A read-only copy of one journal."""

    @property
    def name(self) -> str:
        """URL of the observer, without a password."""

    def reading(self, stamps: Collection[Stamp]) -> AbstractContextManager[tuple[Reading, Stamp]]:
        """Yield one state that includes these stamps, and its own stamp.

        Raises:
            BehindError: It does not include them yet.
            JournalUnavailableError: It cannot be reached, or is not an observer of this journal.
            MalformedJournalError: The copy cannot be read.
        """

    def close(self) -> None:
        """Close the connections."""
