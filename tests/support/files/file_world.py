"""A journal, volumes in directories that a test takes away and damages, and processes that use them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, Self, TypeVar

import pytest

from lockgate.storage_core.errors import JournalUnavailableError, OutcomeUnknownError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.blocks import BlockRecord, Fault, Opened
from lockgate.storage_core.files.files import Files, FileWriter
from lockgate.storage_core.files.namespace.journal_blocks import JournalBlocks
from lockgate.storage_core.files.namespace.members import RegisterVolume
from lockgate.storage_core.files.namespace.queries import blocks_of, file_at
from lockgate.storage_core.files.namespace.rows import Block, Member
from lockgate.storage_core.files.replicas.comparison import Problem
from lockgate.storage_core.files.volumes.protocol import VolumeId
from lockgate.storage_core.files.volumes.replica import BlockId, ReplicaState
from lockgate.storage_core.ids import file_resource
from lockgate.storage_core.journal import Journal, Leases, Mutation
from lockgate.storage_core.journal.entries.lease_entries import Lease
from lockgate.storage_core.journal.entries.op import Op
from lockgate.storage_core.journal.entries.state import Row
from lockgate.storage_core.journal.write.mutation import WriteOutcome
from lockgate.storage_core.settings import load_settings
from tests.support.commit.destination import ManualClock, dying
from tests.support.files.faulty_volumes import FaultyDirectory
from tests.support.journal.checkpoints import JournalWorld

TEXT = b"abcdefghij" * 2
"""Three blocks of 8, 8 and 4 bytes."""

NAMES = tuple(VolumeId(f"volume-{number}") for number in range(3))
SPARE = VolumeId("volume-3")

R = TypeVar("R", bound=Row)


class FileWorld:
    """A journal, three volumes, and processes that use them.

    Attributes:
        volumes: What processes reach, by id.
        opened: All volumes, by id.
        files: A process.
    """

    names = NAMES

    def __init__(self, journals: JournalWorld, root: Path) -> None:
        self.journals = journals
        self.clock: ManualClock = journals.clock
        self.journal: Journal = journals.open()
        self.root = root
        self.opened = {name: FaultyDirectory(root / name, name) for name in NAMES}
        self.volumes = dict(self.opened)
        self.files = self.process()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        FAILPOINTS.observer = None
        self.files.close()
        for volume in self.opened.values():
            volume.close()
        self.journal.close()

    def fill(self, *, has_spare: bool = False) -> Self:
        """Write two files of four blocks in all; then register all volumes, with one that has no replicas."""
        self.write(self.files, "/a.log")
        self.write(self.files, "/b.log", b"abc")
        if has_spare:
            self.volumes[SPARE] = self.opened[SPARE] = FaultyDirectory(self.root / SPARE, SPARE)
            self.register()
        return self

    def restart_volumes(self) -> None:
        for volume in self.opened.values():
            volume.restart()

    def register(self) -> None:
        """Register the URLs of the volumes, so that they get copies."""
        for name, volume in self.opened.items():
            self.journal.apply(RegisterVolume(volume=name, url=volume.folder.as_uri()))

    @contextmanager
    def without(self, *names: VolumeId) -> Iterator[None]:
        """Let no process reach some volumes."""
        away = {name: self.volumes.pop(name) for name in names}
        try:
            yield
        finally:
            self.volumes.update(away)

    @contextmanager
    def without_journal(self) -> Iterator[None]:
        """Let no process reach the journal."""

        def refuse(*_: object) -> NoReturn:
            raise JournalUnavailableError("the journal is down on purpose")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.journal, "write", refuse)
            patch.setattr(self.journal, "reading", refuse)
            yield

    @contextmanager
    def losing_answers(self, *kinds: type[Op]) -> Iterator[None]:
        """Let the journal apply entries of these kinds and give no answer, once for each kind."""
        write, left = self.journal.write, set(kinds)

        def lose(mutations: Sequence[Mutation]) -> list[WriteOutcome]:
            outcomes = write(mutations)
            if lost := left & {type(mutation.op) for mutation in mutations}:
                left.difference_update(lost)
                raise OutcomeUnknownError("the answer was lost on purpose")
            return outcomes

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.journal, "write", lose)
            yield
        assert not left

    def restart_journal(self) -> None:
        """Close the journal, and open it as a new process does."""
        self.journal.close()
        self.journal = self.journals.open()

    def process(self, *names: VolumeId, block_bytes: int = 8, **settings: Any) -> Files:
        """Return the files of a new process, which reaches these volumes, or `volumes`."""
        volumes = {name: self.opened[name] for name in names} if names else self.volumes
        return Files(self.journal, volumes, load_settings(**settings), block_bytes=block_bytes)

    def take(self, path: str, holder: str, members: tuple[VolumeId, ...] = NAMES) -> JournalBlocks:
        """Take a file from its holder, as if the lease had lapsed; new blocks get these members."""
        with self.journal.reading() as reading:
            inode = file_at(reading, path)
        stamp = Leases(self.journal).take(
            file_resource(inode), holder, purpose="take over", soft_s=30, hard_s=120, detail=path
        )
        *before, last = (None, *self.records(path))
        before_bytes = sum(record.length_bytes for record in before if record is not None)
        return JournalBlocks(self.journal, Opened(inode, stamp, before_bytes, last), lambda: members)

    def write(self, files: Files, path: str, data: bytes = TEXT) -> None:
        with files.create(path) as writer:
            writer.write(data)

    def begin(
        self, data: bytes, files: Files | None = None, path: str = "/a.log", *, block_bytes: int = 100
    ) -> FileWriter:
        """Return the writer of a new file with flushed bytes, by default of a process of its own."""
        writer = (files or self.process(block_bytes=block_bytes)).create(path)
        writer.write(data)
        writer.flush()
        return writer

    def read(self, path: str = "/a.log") -> bytes:
        return self.process().open(path).read()

    def leave_open(self, path: str, data: bytes, *, block_bytes: int = 100) -> None:
        """Flush bytes to a new file in a process that then ends without closing it."""
        files = self.process(block_bytes=block_bytes)
        self.begin(data, files, path)
        files.close()

    def lapse(self) -> list[float]:
        """Look at the leases, and let those of ended processes lapse; return in what times they did."""
        views = [Leases(self.journal).look(resource) for resource in self.leases()]
        self.clock.sleep(200)
        return [view.lapses_in_s for view in views if view is not None]

    def recover(self) -> list[str]:
        """Recover what ended processes have left open; return why a file was not recovered."""
        self.lapse()
        return [found.why_not for found in self.process().recovery.recover_lapsed() if found.why_not]

    def rows(self, kind: type[R]) -> list[R]:
        with self.journal.reading() as reading:
            return list(reading.where(kind, {}))

    def entries(self) -> list[str]:
        """Return the kinds of all entries, in order."""
        with self.journal.reading() as reading:
            return [entry.op for entry in reading.entries(0, 10_000)]

    def blocks(self) -> list[BlockId]:
        return [BlockId(row.block) for row in self.rows(Block)]

    def members(self, block: int) -> list[VolumeId]:
        return [VolumeId(row.volume) for row in self.rows(Member) if row.block == block]

    def faults(self) -> dict[tuple[int, str], Fault]:
        return {(row.block, row.volume): row.fault for row in self.rows(Member) if row.fault is not None}

    def findings(self, path: str = "", *, verify: bool = True) -> list[tuple[int | None, Problem, str]]:
        """Return block, problem and path of what a check finds."""
        found = self.files.upkeep.check(path, verify=verify).findings()
        return [(one.block, one.problem, one.path) for one in found]

    def problems(self) -> set[Problem]:
        """Return the problems that a check finds."""
        return {problem for _, problem, _ in self.findings()}

    def leases(self) -> list[str]:
        return [lease.resource for lease in self.rows(Lease)]

    def records(self, path: str) -> tuple[BlockRecord, ...]:
        """Return the blocks of a file."""
        with self.journal.reading() as reading:
            return blocks_of(reading, file_at(reading, path))

    def check_sealed(self, path: str, data: bytes) -> None:
        """Check that a file is closed, and the members of each block are sealed at its stamp and length."""
        files = self.process()
        assert files.open(path).read() == data
        assert not files.status(path).is_open
        assert self.leases() == []
        for record in self.records(path):
            assert (record.state, record.pending) == (ReplicaState.SEALED, None)
            for member in record.members:
                found = self.volumes[member].stat(record.block)
                assert found is not None
                assert (found.state, found.stamp) == (ReplicaState.SEALED, record.stamp)
                assert found.length_bytes == record.length_bytes


@contextmanager
def at(point: str, call: Callable[[], object]) -> Iterator[None]:
    """Make a call, once, when a process passes a point."""
    passed: list[str] = []

    def observe(name: str) -> None:
        if name == point and not passed:
            passed.append(name)
            call()

    FAILPOINTS.observer = dying(observe)
    try:
        yield
    finally:
        FAILPOINTS.observer = None
    assert passed
