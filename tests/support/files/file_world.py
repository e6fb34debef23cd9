"""A journal, three volumes in directories, and processes that write files on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, Self, TypeVar

import pytest

from lockgate.storage_core.errors import JournalUnavailableError, OutcomeUnknownError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.blocks import BlockRecord
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.namespace.members import RegisterVolume
from lockgate.storage_core.files.namespace.queries import blocks_of, file_at
from lockgate.storage_core.files.volumes.directory.directory_volume import DirectoryVolume
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId
from lockgate.storage_core.files.volumes.replica import ReplicaState
from lockgate.storage_core.journal import Journal, Leases, Mutation
from lockgate.storage_core.journal.entries.lease_entries import Lease
from lockgate.storage_core.journal.entries.op import Op
from lockgate.storage_core.journal.entries.state import Row
from lockgate.storage_core.journal.write.mutation import WriteOutcome
from lockgate.storage_core.settings import load_settings
from tests.support.commit.destination import ManualClock
from tests.support.journal.checkpoints import JournalWorld

TEXT = b"abcdefghij" * 2
"""Three blocks of 8, 8 and 4 bytes."""

R = TypeVar("R", bound=Row)


class FileWorld:
    """A journal, three volumes, and processes that use them.

    Attributes:
        volumes: What processes reach, by id.
    """

    def __init__(self, journals: JournalWorld, root: Path) -> None:
        self.journals = journals
        self.clock: ManualClock = journals.clock
        self.journal: Journal = journals.open()
        self.folders = [root / f"volume-{number}" for number in range(3)]
        self.volumes: dict[VolumeId, Volume] = {}
        self.opened: dict[VolumeId, DirectoryVolume] = {}
        self.start_volumes()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        FAILPOINTS.observer = None
        self.stop_volumes()
        self.journal.close()

    @property
    def names(self) -> tuple[VolumeId, ...]:
        """Return the ids of the volumes, in the order of `folders`."""
        return tuple(VolumeId((folder / "volume.id").read_text()) for folder in self.folders)

    def start_volumes(self) -> None:
        self.opened.update({volume.id: volume for volume in map(DirectoryVolume, self.folders)})
        self.volumes.update(self.opened)

    def restart_volumes(self) -> None:
        self.stop_volumes()
        self.start_volumes()

    def stop_volumes(self) -> None:
        while self.opened:
            self.opened.popitem()[1].close()

    def register(self) -> None:
        """Register the URLs of the volumes, so that they get copies."""
        for name, folder in zip(self.names, self.folders, strict=True):
            self.journal.apply(RegisterVolume(volume=name, url=folder.as_uri()))

    def log(self, at: int, block: int) -> Path:
        """Return the newest log of a replica."""
        return sorted((self.folders[at] / "blocks" / f"{block:020d}").iterdir())[-1]

    def flip(self, at: int, block: int, data: bytes) -> None:
        """Change a bit of bytes that a replica has."""
        log = self.log(at, block)
        raw = bytearray(log.read_bytes())
        raw[raw.index(data)] ^= 1
        log.write_bytes(raw)

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

    def process(self, *, block_bytes: int = 8) -> Files:
        return Files(self.journal, self.volumes, load_settings(), block_bytes=block_bytes)

    def write(self, files: Files, path: str, data: bytes = TEXT) -> None:
        with files.create(path) as writer:
            writer.write(data)

    def leave_open(self, path: str, data: bytes, *, block_bytes: int = 100) -> None:
        """Flush bytes to a new file in a process that then ends without closing it."""
        files = self.process(block_bytes=block_bytes)
        writer = files.create(path)
        writer.write(data)
        writer.flush()
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
