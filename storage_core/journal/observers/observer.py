"""What an observer is: a copy of the journal that gives readings, each of one state."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager
from typing import Protocol

from lockgate.storage_core.journal.read.snapshot_read import Reading
from lockgate.storage_core.stamp import Stamp


class Observer(Protocol):
    """A copy of one journal. It changes nothing, and never the primary."""

    @property
    def name(self) -> str:
        """Its URL as people may see it, without a password."""

    def reading(self, stamps: Collection[Stamp]) -> AbstractContextManager[tuple[Reading, Stamp]]:
        """Read one state that holds these stamps; gives the state's own stamp, too.

        Raises:
            BehindError: It does not hold them yet.
            JournalUnavailableError: It cannot be reached, or is no observer of this journal.
            MalformedJournalError: What is there cannot be read.
        """

    def close(self) -> None:
        """Give its connections back."""
