"""A primary, observers that catch up with it on request, and clients: for tests of observers."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from prometheus_client import REGISTRY
from sqlalchemy import delete, true, update

from lockgate.storage_core.errors import JournalUnavailableError
from lockgate.storage_core.journal import Journal, Reading, Stamp, open_journal
from lockgate.storage_core.journal.database.database import Database, parse_url
from lockgate.storage_core.journal.database.schema import ENTRY, HEAD, table_of
from lockgate.storage_core.journal.entries.family import known_families
from lockgate.storage_core.journal.entries.lease_entries import Lease, TakeLease
from lockgate.storage_core.journal.observers.hot_standby import BehindError, _reached, read_at_least
from lockgate.storage_core.journal.observers.reading_client import Client
from lockgate.storage_core.journal.write.head import begin_epoch, lock_head
from tests.support.commit.destination import ManualClock

_numbers = count()


@dataclass
class SteppingClock(ManualClock):
    """A clock that sleeping advances; it calls a function during each sleep."""

    meanwhile: Callable[[], object] = lambda: None
    slept_s: float = 0.0

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.slept_s += seconds
        self.meanwhile()


class FileObserver:
    """A copy of a primary's SQLite file, which represents a hot standby.

    Args:
        file: Path of the copy. It need not exist yet.
        primary: The journal that was copied.
    """

    def __init__(self, file: Path, primary: Journal) -> None:
        self._file = file
        self._database = Database(parse_url(f"sqlite:///{file}"))
        self._primary = primary

    @property
    def name(self) -> str:
        return self._database.name

    def reading(self, stamps: Collection[Stamp]) -> AbstractContextManager[tuple[Reading, Stamp]]:
        if not self._file.exists():  # SQLite would create an empty one
            raise JournalUnavailableError(f"observer {self.name}: no such file")
        return read_at_least(self._database, self._primary.name, self._primary.identity, stamps)

    def close(self) -> None:
        self._database.close()


class SnapshotObserver:
    """A snapshot of a primary, held open: it represents a hot standby, on both databases.

    Args:
        url: URL of the primary.
        primary: The journal.
    """

    name = "snapshot"

    def __init__(self, url: str, primary: Journal) -> None:
        self._database = Database(parse_url(url))
        self._primary = primary
        self._held = ExitStack()
        self._reading: Reading | None = None

    def catch_up(self) -> None:
        """Take the primary's newest state."""
        self.close()
        connection = self._held.enter_context(self._database.snapshot())
        self._reading = Reading(connection, self._database, self._primary.name)
        self._reading.status()  # the first statement takes the snapshot

    @contextmanager
    def reading(self, stamps: Collection[Stamp]) -> Iterator[tuple[Reading, Stamp]]:
        if self._reading is None:
            raise BehindError("it holds nothing yet")
        yield self._reading, _reached(self._reading, self._primary.identity, stamps, true())

    def close(self) -> None:
        self._reading = None
        self._held.close()
        self._database.close()


@dataclass(frozen=True)
class Replication:
    """Replication of a primary's file to an observer's, a step at a time."""

    primary: Path
    copy: Path

    def poll(self) -> None:
        """Bring the copy to the primary's state."""
        source, target = sqlite3.connect(self.primary), sqlite3.connect(self.copy)
        try:
            source.backup(target)
        finally:
            source.close()
            target.close()


@dataclass
class ObserverWorld:
    """One journal in SQLite and its observers; `close` gives all connections back."""

    root: Path
    clock: SteppingClock = field(default_factory=SteppingClock)
    clients: list[Client] = field(default_factory=list)
    journals: list[Journal] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.journal = self.another_process()

    @property
    def url(self) -> str:
        return f"sqlite:///{self.root / 'journal.db'}"

    def file(self, number: int) -> Path:
        return self.root / f"observer-{number}.db"

    def another_process(self) -> Journal:
        """Return the primary as another process has it open."""
        self.journals.append(open_journal(self.url, clock=self.clock))
        return self.journals[-1]

    def tailer(self, number: int = 0) -> Replication:
        return Replication(self.root / "journal.db", self.file(number))

    def client(self, observers: int = 1, journal: Journal | None = None, **options: Any) -> Client:
        primary = journal or self.journal
        copies = [FileObserver(self.file(number), primary) for number in range(observers)]
        self.clients.append(Client(primary, copies, clock=self.clock, **options))
        return self.clients[-1]

    def close(self) -> None:
        for opened in (*self.clients, *self.journals):
            opened.close()


def take(journal: Journal, resource: str | None = None) -> Stamp:
    """Write an entry that makes one row."""
    name = resource or f"resource-{next(_numbers)}"
    op = TakeLease(resource=name, holder="h", purpose="write", soft_s=30, hard_s=120)
    return journal.apply(op).stamp


def server_and_rows(reading: Reading) -> tuple[str, int]:
    """Return the name of the responding server and the number of rows, one per entry in these tests."""
    return Path(reading.database.url.database or "").stem, len(reading.where(Lease, {}))


def content(reading: Reading) -> dict[str, Any]:
    """Return all rows of a state."""
    rows = {kind.TABLE: reading.where(kind, {}) for kind in known_families().rows}
    return {**rows, "stamp": reading.status().stamp, "identity": reading.status().identity}


def lose_after(journal: Journal, sequence: int, *, new_epoch: bool = True) -> None:
    """Simulate a failover of a primary: later entries are lost and a new epoch begins."""
    with journal.database.write() as connection:
        head = lock_head(connection, journal.database, journal.known)
        for table in (ENTRY, table_of(Lease)):
            connection.execute(delete(table).where(table.c.sequence > sequence))
        connection.execute(update(HEAD).values(sequence=sequence))
        if new_epoch:
            last = Stamp(head.stamp.epoch, sequence)
            begin_epoch(connection, journal.name, last, timeline=0, reason="a test", now_s=head.now_s)


def figure(name: str, **labels: str) -> float:
    """Return a metric of the journal."""
    return REGISTRY.get_sample_value(f"lockgate_journal_{name}", labels) or 0.0
