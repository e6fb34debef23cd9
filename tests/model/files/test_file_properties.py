"""Any order of writes, faults, recoveries and truncates: flushed bytes are read exactly, or a read raises."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from lockgate.storage_core.errors import StoreUnavailableError
from lockgate.storage_core.files.reader import Reader
from lockgate.storage_core.files.reseal import reseal
from lockgate.storage_core.files.volumes.protocol import VolumeId
from lockgate.storage_core.files.volumes.replica import ReplicaState
from lockgate.storage_core.files.volumes.s3.s3_volume import S3Volume
from lockgate.storage_core.files.writing.writer import Writer
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.stores import Store, open_store
from tests.support.commit.destination import ManualClock
from tests.support.files.faulty_volume import FaultyVolume, RestartingVolume
from tests.support.files.memory_blocks import MemoryBlocks, MemoryJournal
from tests.support.files.memory_volume import MemoryVolume
from tests.support.soak import machine_settings

NAMES = (VolumeId("a"), VolumeId("b"), VolumeId("c"))
CALLS = ("create", "append", "flush", "finish", "stat", "fence", "trim", "read")
BLOCK_BYTES = 7
KEPT_BYTES = 1_000

volumes = st.sampled_from(NAMES)


class FileMachine(RuleBasedStateMachine):
    """One file on three volumes, its writer, and its bytes as a model has them.

    Attributes:
        flushed: Bytes that a flush has promised.
        written: Those, and the bytes that may have been stored since.
    """

    @initialize()
    def begin(self) -> None:
        self.volumes = self.make_volumes()
        self.journal = MemoryJournal(NAMES)
        self.writer: Writer | None = None
        self.flushed, self.written = b"", b""
        self.count = 0

    def make_volumes(self) -> Mapping[VolumeId, MemoryVolume | FaultyVolume]:
        return {name: MemoryVolume() for name in NAMES}

    def is_settled(self) -> bool:
        rows = self.journal.rows.values()
        return all(row.state is ReplicaState.SEALED and row.pending is None for row in rows)

    @precondition(lambda self: self.writer is None)
    @rule()
    def open_to_append(self) -> None:
        try:
            self.writer = Writer(self._blocks("writer"), self.volumes, block_bytes=BLOCK_BYTES)
        except StoreUnavailableError:
            return
        self._settle(self.writer.tell())

    @rule(size=st.integers(1, 10), is_flushed=st.booleans())
    def write(self, size: int, *, is_flushed: bool) -> None:
        if self.writer is None:
            self.open_to_append()
        if self.writer is None:
            return
        data = bytes((self.count + number) % 251 for number in range(size))
        self.count += size
        before = self.writer.tell()
        try:
            self.writer.write(data)
        except StoreUnavailableError:
            taken = self.writer.tell() - before
            assert 0 <= taken <= size
            self.written += data[:taken]
            return
        self.written += data
        if is_flushed:
            self.flush()

    @precondition(lambda self: self.writer is not None)
    @rule()
    def flush(self) -> None:
        assert self.writer is not None
        try:
            self.writer.flush()
        except StoreUnavailableError:
            return
        self.flushed = self.written

    @precondition(lambda self: self.writer is not None)
    @rule()
    def close(self) -> None:
        assert self.writer is not None
        try:
            self.writer.close()
        except StoreUnavailableError:
            pass
        else:
            self.flushed = self.written
            assert self.is_settled()
        self.writer = None

    @rule()
    def the_writer_dies(self) -> None:
        self.writer = None

    @precondition(lambda self: self.writer is None)
    @rule()
    def recover(self) -> None:
        blocks = self._blocks("recovery")
        try:
            for row in blocks.records():
                if row.state is ReplicaState.WRITING or row.pending:
                    reseal(blocks, self.volumes, row.block, ends=ReplicaState.SEALED)
        except StoreUnavailableError:
            return
        self._settle(sum(row.length_bytes for row in blocks.records()))

    @precondition(lambda self: self.writer is None and self.journal.rows and self.is_settled())
    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        blocks = self._blocks("truncate")
        last = blocks.records()[-1]
        target = round(share * last.length_bytes)
        length = sum(row.length_bytes for row in blocks.records()) - last.length_bytes + target
        self.flushed = self.written = self.written[:length]
        try:
            reseal(blocks, self.volumes, last.block, ends=ReplicaState.SEALED, target_bytes=target)
        except StoreUnavailableError:
            assert blocks.record(last.block).target_bytes == target

    @rule(name=volumes)
    def a_volume_goes_or_returns(self, name: VolumeId) -> None:
        self.volumes[name].is_up = not self.volumes[name].is_up

    @rule()
    def all_volumes_return(self) -> None:
        for volume in self.volumes.values():
            volume.is_up = True

    @rule(name=volumes)
    def a_volume_restarts(self, name: VolumeId) -> None:
        self.volumes[name].restart()

    @rule(name=volumes, call=st.sampled_from(CALLS), is_applied=st.booleans())
    def a_call_gets_no_answer(self, name: VolumeId, call: str, *, is_applied: bool) -> None:
        volume = self.volumes[name]
        (volume.loses if is_applied else volume.refuses).add(call)

    @rule()
    def read(self) -> None:
        try:
            found = self._reader().read()
        except StoreUnavailableError:
            return
        assert found[: len(self.flushed)] == self.flushed
        if self.is_settled() or self.writer is not None:
            assert self.written[: len(found)] == found

    def teardown(self) -> None:
        if not hasattr(self, "journal"):
            return
        for volume in self.volumes.values():
            volume.is_up = True
            volume.loses.clear()
            volume.refuses.clear()
        self.writer = None
        self.recover()
        assert self.is_settled()
        assert self._reader().read() == self.written
        for row in self.journal.rows.values():
            copies = {self.volumes[name].read(row.block, row.stamp, 0, KEPT_BYTES) for name in row.members}
            assert {len(copy) for copy in copies} <= {row.length_bytes}
            assert len(copies) == min(1, len(row.members))

    def _settle(self, length: int) -> None:
        """Take the length that a reseal or a truncate has given the file."""
        assert len(self.flushed) <= length <= len(self.written)
        self.flushed = self.written = self.written[:length]

    def _blocks(self, holder: str) -> MemoryBlocks:
        return MemoryBlocks(self.journal, holder)

    def _reader(self) -> Reader:
        return Reader(lambda: tuple(self.journal.rows.values()), self.volumes, clock=ManualClock())


TestFileProperties = FileMachine.TestCase
TestFileProperties.settings = machine_settings(120, 40, soak_examples=3000)


def test_file_properties_over_directories(tmp_path: Path) -> None:
    folders = count()

    class OverDirectories(FileMachine):
        def make_volumes(self) -> Mapping[VolumeId, MemoryVolume | FaultyVolume]:
            self.opened = [RestartingVolume(tmp_path / str(next(folders))) for _ in NAMES]
            return {
                name: FaultyVolume(lambda at=at: at.opened, at.restart)  # type: ignore[misc]
                for name, at in zip(NAMES, self.opened, strict=True)
            }

        def teardown(self) -> None:
            super().teardown()
            for volume in getattr(self, "opened", ()):
                volume.opened.close()

    run_state_machine_as_test(OverDirectories, settings=machine_settings(60, 40, soak_examples=1000))


def test_file_properties_over_volumes_in_buckets(tmp_path: Path) -> None:
    folders = count()

    class OverS3Volumes(FileMachine):
        def make_volumes(self) -> Mapping[VolumeId, MemoryVolume | FaultyVolume]:
            return {
                name: self.start(open_store(str(tmp_path / str(next(folders))), load_settings()))
                for name in NAMES
            }

        def start(self, bucket: Store) -> FaultyVolume:
            opened = [S3Volume(bucket)]
            return FaultyVolume(lambda: opened[-1], lambda: opened.append(S3Volume(bucket)))

    run_state_machine_as_test(OverS3Volumes, settings=machine_settings(20, 40, soak_examples=300))
