"""A primary, observers that tail it when a test says so, and clients: shared by the tests of observers."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from sqlalchemy import delete, update

from lockgate.storage_core.commit.registry.entries import RecordJob
from lockgate.storage_core.journal import Journal, Reading, Stamp, open_journal
from lockgate.storage_core.journal.database.schema import ENTRY, HEAD, table_of
from lockgate.storage_core.journal.entries.family import known_families
from lockgate.storage_core.journal.entries.leases import DropLease, FreeLease, TakeLease
from lockgate.storage_core.journal.entries.rows import Lease
from lockgate.storage_core.journal.metrics import registry
from lockgate.storage_core.journal.observers import Client, Tailer, open_observer, open_tailer
from lockgate.storage_core.journal.write.transaction import begin_epoch, lock_head
from tests.commit_world import ManualClock

_numbers = count()


@dataclass
class SteppingClock(ManualClock):
    """Moves when it is slept by, and lets something happen meanwhile."""

    meanwhile: Callable[[], object] = lambda: None
    slept_s: float = 0.0

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.slept_s += seconds
        self.meanwhile()


@dataclass
class ObserverWorld:
    """One journal in SQLite and its embedded observers; `close` gives all connections back."""

    root: Path
    clock: SteppingClock = field(default_factory=SteppingClock)
    tailers: list[Tailer] = field(default_factory=list)
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

    def tailer(self, number: int = 0, **options: Any) -> Tailer:
        self.tailers.append(open_tailer(self.url, self.file(number), clock=self.clock, **options))
        return self.tailers[-1]

    def client(self, observers: int = 1, journal: Journal | None = None, **options: Any) -> Client:
        primary = journal or self.journal
        copies = [open_observer(f"sqlite:///{self.file(number)}", primary) for number in range(observers)]
        self.clients.append(Client(primary, copies, clock=self.clock, **options))
        return self.clients[-1]

    def close(self) -> None:
        for opened in (*self.clients, *self.tailers, *self.journals):
            opened.close()


def take(journal: Journal, resource: str | None = None) -> Stamp:
    """Write an entry that makes one row."""
    name = resource or f"resource-{next(_numbers)}"
    op = TakeLease(resource=name, holder="h", purpose="write", soft_s=30, hard_s=120)
    return journal.apply(op).stamp


def asked(reading: Reading) -> tuple[str, int]:
    """Ask who answers, and how many rows there are: as many as entries, in these tests."""
    return Path(reading.database.url.database or "").stem, len(reading.where(Lease, {}))


def content(reading: Reading) -> dict[str, Any]:
    """Return all that a state says."""
    rows = {kind.TABLE: reading.where(kind, {}) for kind in known_families().rows}
    return {**rows, "stamp": reading.status().stamp, "identity": reading.status().identity}


def lose_after(journal: Journal, sequence: int, *, new_epoch: bool = True) -> None:
    """Do to a primary what a failover does: entries after one are gone, and a new epoch begins."""
    with journal.database.write() as connection:
        head = lock_head(connection, journal.database, journal.name)
        for table in (ENTRY, table_of(Lease)):
            connection.execute(delete(table).where(table.c.sequence > sequence))
        connection.execute(update(HEAD).values(sequence=sequence))
        if new_epoch:
            last = Stamp(head.stamp.epoch, sequence)
            begin_epoch(connection, journal.name, last, timeline=0, reason="a test", now_s=head.now_s)


def figure(name: str, **labels: str) -> float:
    """Return a figure of the journal's."""
    return registry().get_sample_value(f"lockgate_journal_{name}", labels) or 0.0


def write_all_kinds(journal: Journal) -> None:
    """Write entries that insert, change and remove rows of several tables."""
    first, second = take(journal, "a"), take(journal, "b")
    journal.apply(FreeLease(resource="a", stamp=first))
    journal.apply(DropLease(resource="a"))
    journal.apply(FreeLease(resource="b", stamp=second))
    for phase in ("open", "committed"):
        journal.apply(
            RecordJob(
                destination="file:///d", job_id="j-g1", name="j", short_id="aaaaaaaaaa", committer="magic",
                mode="append", phase=phase, job_attempt="1", set_up_s=1.0,
            )
        )  # fmt: skip


def primary_of(world: ObserverWorld) -> dict[str, object]:
    with world.journal.reading() as reading:
        return content(reading)


def copy_of(world: ObserverWorld, number: int = 0) -> dict[str, object]:
    with world.tailers[number]._mirror.database.snapshot() as connection:
        return content(world.tailers[number]._mirror._reading(connection))


def copied_until(world: ObserverWorld) -> int:
    """Return the newest entry that came by the slow path."""
    status = world.tailers[0]._mirror.status()
    assert status is not None
    return status.pruned_sequence


def dump(path: Path) -> list[str]:
    with sqlite3.connect(path) as connection:
        lines = list(connection.iterdump())
    connection.close()
    return lines


def prune(journal: Journal, sequence: int) -> None:
    with journal.database.write() as connection:
        connection.execute(delete(ENTRY).where(ENTRY.c.sequence <= sequence))
        connection.execute(update(HEAD).values(pruned_sequence=sequence))
