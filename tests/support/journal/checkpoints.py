"""A journal with a history and checkpoints, and the rows that must survive."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockgate.storage_core.commit.registry.entries import ForgetJob, RecordJob, RecordTask
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.journal import Journal, Mutation, Stamp, open_journal
from lockgate.storage_core.journal.checkpoint.checkpoints import Checkpoint, Checkpoints, take_checkpoint
from lockgate.storage_core.journal.checkpoint.prune import Pruned, prune
from lockgate.storage_core.journal.checkpoint.restore import Restored, restore
from lockgate.storage_core.journal.checkpoint.verify import Verification, verify
from lockgate.storage_core.journal.entries.claim_entries import ClaimName
from lockgate.storage_core.journal.entries.family import known_families
from lockgate.storage_core.journal.entries.lease_entries import FreeLease, SuspendLease, TakeLease
from lockgate.storage_core.journal.entries.op import Op
from lockgate.storage_core.journal.journal import maintenance
from lockgate.storage_core.journal.write.head import begin_epoch
from lockgate.storage_core.stores import open_store
from tests.support.commit.destination import Crash, ManualClock, dying

DEST = "s3://lake/sales"


def take(resource: str, purpose: str = "write", holder: str = "h") -> TakeLease:
    return TakeLease(resource=resource, holder=holder, purpose=purpose, soft_s=30, hard_s=120)  # type: ignore[arg-type]


def job(number: int, phase: str = "open") -> RecordJob:
    return RecordJob(
        destination=DEST,
        job_id=f"job{number}-g1",
        name=f"job{number}",
        short_id="abcdefghij",
        committer="magic",
        mode="append",
        phase=phase,  # type: ignore[arg-type]
        job_attempt="a1",
        set_up_s=1.5,
    )


def task(number: int, part: int = 0) -> RecordTask:
    return RecordTask(
        destination=DEST,
        job_id=f"job{number}-g1",
        task_id=f"part-{part}",
        attempt_id="x",
        job_attempt="a1",
        files=1,
        rows=None,
        size_bytes=10,
    )


@dataclass
class JournalWorld:
    """One journal, the store of its checkpoints, and databases that it can be restored into."""

    root: Path
    url: str
    spare_url: str
    clock: ManualClock = field(default_factory=ManualClock)

    @property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(open_store(str(self.root / "checkpoints")), "main")

    def open(self, url: str = "") -> Journal:
        return open_journal(url or self.url, clock=self.clock)

    def apply(self, *ops: Op, url: str = "") -> list[Stamp]:
        """Write entries, a second apart, by callers whose clock is the database's."""
        stamps = []
        with self.open(url) as journal:
            for op in ops:
                self.clock.sleep(1)
                (written,) = journal.write([Mutation(op=op, asked_s=self.clock.now)])
                stamps.append(written.stamp)  # type: ignore[union-attr]
        return stamps

    def live(self, number: int = 1) -> None:
        """Write a little of everything: leases in every standing, jobs that end or are forgotten, a claim."""
        names = [f"job:{number}-{letter}" for letter in "abc"]
        _, b, c = self.apply(*(take(name) for name in names))
        self.apply(
            SuspendLease(resource=names[1], stamp=b, for_s=60),
            FreeLease(resource=names[2], stamp=c),
            job(number),
            task(number),
            task(number, 1),
            job(number, "committed"),
            job(number + 1000),
            task(number + 1000),
            ForgetJob(destination=DEST, job_id=f"job{number + 1000}-g1"),
            ClaimName(store=DEST, name=f"n{number}", body="AAAA"),
        )

    def checkpoint(self, url: str = "") -> Checkpoint:
        with self.open(url) as journal, journal.reading() as reading:
            return take_checkpoint(reading, self.checkpoints)[0]

    def verify(self, url: str = "") -> Verification:
        with self.open(url) as journal, journal.reading() as reading:
            return verify(reading, self.checkpoints)

    def prune(self, url: str = "", **options: Any) -> Pruned:
        chosen = {"kept": 5, "request_retention_s": 86_400.0, **options}
        with self.open(url) as journal:
            return prune(journal, self.checkpoints, **chosen)

    def restore(self, *, with_entries: bool = False, checkpoint: Stamp | None = None) -> Restored:
        """Restore into the spare database, from checkpoints alone or with the entries of the first one."""
        with self.open(self.spare_url) as journal, self.open() as source:
            return restore(
                journal, self.checkpoints, source=source if with_entries else None, checkpoint=checkpoint
            )

    def rows(self, url: str = "") -> dict[str, list[Any]]:
        """Return all rows of the tables."""
        with self.open(url) as journal, journal.reading() as reading:
            return {kind.TABLE: list(reading.where(kind, {})) for kind in known_families().rows}

    def fail_over(self, *, kept: int) -> None:
        """Continue like a promoted standby that had received this many entries."""
        self.run_sql(f"DELETE FROM entry WHERE sequence > {kept}")
        self.run_sql(f"UPDATE head SET sequence = {kept}")
        with self.open() as journal, maintenance(journal, "epoch") as (connection, head):
            begin_epoch(
                connection,
                journal.name,
                head.stamp,
                timeline=head.timeline,
                reason="failed over",
                now_s=head.now_s,
            )

    def run_sql(self, statement: str, *, url: str = "") -> None:
        """Damage the database, as no program of ours would."""
        with self.open(url) as journal, journal.database.write() as connection:
            connection.exec_driver_sql(statement)
        for file in self.root.glob("*.db-head-*"):  # it would show that the head has gone back
            file.unlink()


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x01
    path.write_bytes(data)


def file_of(journals: JournalWorld, stamp: Stamp) -> Path:
    """Return the path of a checkpoint."""
    [path] = (journals.root / "checkpoints/main/checkpoints").glob(f"*{stamp.sequence:018d}.jsonl.zst")
    return path


@contextmanager
def dying_at(number: int) -> Iterator[list[str]]:
    """Die at the n-th passed point, counted from 1; later calls have no effect.

    Yields the names of the points that were passed; the last one is where it died.
    """
    passed: list[str] = []

    def observe(name: str) -> None:
        passed.append(name)
        if len(passed) >= number:
            raise Crash(name)

    FAILPOINTS.observer = dying(observe)
    try:
        yield passed
    except Crash:
        pass
    finally:
        FAILPOINTS.observer = None
