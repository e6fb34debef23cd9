"""Any order of writes, pauses, faults, damage, recoveries and truncates: right bytes are read, or none."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
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

from lockgate.storage_core.errors import FencedError, MalformedRecordError, StoreUnavailableError
from lockgate.storage_core.files.reader import Reader
from lockgate.storage_core.files.reseal import reseal
from lockgate.storage_core.files.volumes.directory.directory_volume import DirectoryVolume
from lockgate.storage_core.files.volumes.protocol import VolumeId
from lockgate.storage_core.files.volumes.replica import ReplicaState
from lockgate.storage_core.files.volumes.s3.s3_volume import S3Volume
from lockgate.storage_core.files.writing.writer import Writer
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.stores import open_store
from tests.support.commit.destination import ManualClock
from tests.support.files.faulty_volumes import FaultyVolume
from tests.support.files.memory_blocks import MemoryBlocks, MemoryJournal
from tests.support.files.memory_volume import MemoryVolume
from tests.support.soak import machine_settings

NAMES = (VolumeId("a"), VolumeId("b"), VolumeId("c"))
CALLS = ("create", "append", "flush", "finish", "stat", "fence", "trim", "read")
BLOCK_BYTES = 7
KEPT_BYTES = 1_000
REFUSED = (StoreUnavailableError, MalformedRecordError)

volumes = st.sampled_from(NAMES)


class FileMachine(RuleBasedStateMachine):
    """One file on three volumes, its writers, and its bytes as a model has them.

    Attributes:
        writer: The newest writer.
        paused: One before it, which does not know that it may be over.
        is_taken: Whether another process has resealed the file since the pause.
        flushed: Bytes that a flush has promised.
        written: Those, and the bytes that may have been stored since.
    """

    @initialize()
    def begin(self) -> None:
        self.volumes = self.make_volumes()
        self.journal = MemoryJournal(NAMES)
        self.writer: Writer | None = None
        self.paused: Writer | None = None
        self.is_taken = False
        self.flushed, self.written = b"", b""
        self.count = 0
        self.damages = 0
        self.holders = count()

    def make_volumes(self) -> Mapping[VolumeId, MemoryVolume | FaultyVolume]:
        return {name: MemoryVolume() for name in NAMES}

    def is_settled(self) -> bool:
        rows = self.journal.rows.values()
        return all(row.state is ReplicaState.SEALED and row.pending is None for row in rows)

    @precondition(lambda self: self.writer is None)
    @rule()
    def open_to_append(self) -> None:
        try:
            self.writer = Writer(self._blocks(), self.volumes, block_bytes=BLOCK_BYTES)
        except REFUSED:
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
        except FencedError:
            self._end_of_a_writer_whose_lease_was_taken()
            self.written += data  # perhaps
            return
        except REFUSED:
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
        except FencedError:
            self._end_of_a_writer_whose_lease_was_taken()
            return
        except REFUSED:
            return
        self.flushed = self.written

    @precondition(lambda self: self.writer is not None)
    @rule()
    def close(self) -> None:
        assert self.writer is not None
        try:
            self.writer.close()
        except FencedError:
            self._end_of_a_writer_whose_lease_was_taken()
        except REFUSED:
            pass
        else:
            self.flushed = self.written
            assert self.is_settled()
        self.writer = None

    @rule()
    def the_writer_dies(self) -> None:
        self.writer = None

    @precondition(lambda self: self.writer is not None)
    @rule()
    def the_writer_pauses(self) -> None:
        self.paused, self.writer, self.is_taken = self.writer, None, False

    @precondition(lambda self: self.paused is not None and (self.is_taken or self.writer is None))
    @rule()
    def the_paused_writer_goes_on(self) -> None:
        assert self.paused is not None
        writer, self.paused = self.paused, None
        if not self.is_taken:
            self.writer = writer  # the file was not resealed: it may still write
            return
        try:
            writer.write(b"!")
            writer.flush()
        except (FencedError, *REFUSED):
            return
        raise AssertionError("bytes were acknowledged to a writer whose file was resealed")

    @precondition(lambda self: self.writer is None)
    @rule()
    def recover(self) -> None:
        try:
            self._recover()
        except REFUSED:
            return
        self._settle(self._length())

    @precondition(lambda self: self.writer is None and self.journal.rows and self.is_settled())
    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        blocks = self._blocks()
        last = blocks.records()[-1]
        target = round(share * last.length_bytes)
        length = sum(row.length_bytes for row in blocks.records()) - last.length_bytes + target
        self.flushed = self.written = self.written[:length]
        self.is_taken = True
        try:
            reseal(blocks, self.volumes, last.block, ends=ReplicaState.SEALED, target_bytes=target)
        except REFUSED:
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
        except REFUSED:
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
        try:
            self._recover()
        except MalformedRecordError:
            self._recover(accept_loss=True)  # each member that is left was damaged
            assert self.damages
            return
        self._settle(self._length())
        assert self.is_settled()
        try:
            assert self._reader().read() == self.written
        except REFUSED:
            assert self.damages
        if self.damages:
            return
        for row in self.journal.rows.values():
            copies = {self.volumes[name].read(row.block, row.stamp, 0, KEPT_BYTES) for name in row.members}
            assert {len(copy) for copy in copies} <= {row.length_bytes}
            assert len(copies) == min(1, len(row.members))

    def _end_of_a_writer_whose_lease_was_taken(self) -> None:
        """Forget a writer that a reseal has fenced, of which no commit came."""
        assert self.writer is not None
        assert isinstance(self.writer._blocks, MemoryBlocks)
        assert self.writer._blocks.holder != self.journal.holder
        self.writer = None

    def _recover(self, *, accept_loss: bool = False) -> None:
        blocks = self._blocks()
        for row in blocks.records():
            if not row.is_settled:
                reseal(blocks, self.volumes, row.block, ends=ReplicaState.SEALED, accept_loss=accept_loss)

    def _length(self) -> int:
        return sum(row.length_bytes for row in self.journal.rows.values())

    def _settle(self, length: int) -> None:
        """Take the length that a reseal or a truncate has given the file."""
        assert len(self.flushed) <= length <= len(self.written)
        self.flushed = self.written = self.written[:length]
        self.is_taken = True

    def _blocks(self) -> MemoryBlocks:
        return MemoryBlocks(self.journal, f"holder {next(self.holders)}")

    def _reader(self) -> Reader:
        return Reader(lambda: tuple(self.journal.rows.values()), self.volumes, clock=ManualClock())


class DamagedMachine(FileMachine):
    """The same with damage: bytes, the end of a replica, or all of it."""

    @rule(
        name=volumes, choice=st.integers(0, 100), length=st.none() | st.integers(0, 6), is_shown=st.booleans()
    )
    def a_replica_is_damaged(
        self, name: VolumeId, choice: int, length: int | None, *, is_shown: bool
    ) -> None:
        volume, blocks = self.volumes[name], list(self.journal.rows)
        assert isinstance(volume, MemoryVolume)
        if blocks:
            self.damages += 1
            volume.lose(blocks[choice % len(blocks)], length, is_shown=is_shown)


TestFileProperties = FileMachine.TestCase
TestFileProperties.settings = machine_settings(80, 40)
TestDamagedFiles = DamagedMachine.TestCase
TestDamagedFiles.settings = machine_settings(80, 40)


def test_file_properties_over_directories(tmp_path: Path) -> None:
    folders = count()

    class OverDirectories(FileMachine):
        def make_volumes(self) -> Mapping[VolumeId, MemoryVolume | FaultyVolume]:
            return {
                name: FaultyVolume(partial(DirectoryVolume, tmp_path / str(next(folders)))) for name in NAMES
            }

        def teardown(self) -> None:
            super().teardown()
            for volume in getattr(self, "volumes", {}).values():
                volume.opened.close()

    run_state_machine_as_test(OverDirectories, settings=machine_settings(60, 40))


def test_file_properties_over_volumes_in_buckets(tmp_path: Path) -> None:
    folders = count()

    class OverS3Volumes(FileMachine):
        def make_volumes(self) -> Mapping[VolumeId, MemoryVolume | FaultyVolume]:
            buckets = [open_store(str(tmp_path / str(next(folders))), load_settings()) for _ in NAMES]
            return {
                name: FaultyVolume(partial(S3Volume, bucket))
                for name, bucket in zip(NAMES, buckets, strict=True)
            }

    run_state_machine_as_test(OverS3Volumes, settings=machine_settings(20, 40))
