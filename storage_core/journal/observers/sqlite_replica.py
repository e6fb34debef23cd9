"""The embedded observer, as its readers see it: a SQLite file that a `Tailer` keeps near the primary."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager
from pathlib import Path

from sqlalchemy.engine import URL

from lockgate.storage_core.errors import JournalUnavailableError
from lockgate.storage_core.journal.database.database import Database
from lockgate.storage_core.journal.observers.catch_up import reading_at_least
from lockgate.storage_core.journal.read.snapshot_read import Reading
from lockgate.storage_core.stamp import Stamp


class TailingObserver:
    """One file, on a disk of this machine; a process of its own or a thread tails into it.

    Args:
        url: As `parse_url` returns it.
        journal: Name of the journal.
        identity: Of the journal.
    """

    def __init__(self, url: URL, journal: str, identity: str) -> None:
        self._database = Database(url)
        self._path = Path(url.database or "")
        self._journal = journal
        self._identity = identity

    @property
    def name(self) -> str:
        """Its URL."""
        return self._database.name

    def reading(self, stamps: Collection[Stamp]) -> AbstractContextManager[tuple[Reading, Stamp]]:
        """Read one state that holds these stamps; gives the state's own stamp, too.

        Raises:
            BehindError: It does not hold them yet.
            JournalUnavailableError: There is no such file, or it is of another journal.
        """
        if not self._path.exists():  # SQLite would make an empty one
            raise JournalUnavailableError(
                f"observer {self.name}: no such file; `lockgate journal observe --to {self._path}` makes it"
            )
        return reading_at_least(self._database, self._journal, self._identity, stamps)

    def close(self) -> None:
        """Give its connections back."""
        self._database.close()
