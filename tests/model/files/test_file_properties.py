"""One file over real volumes and a real journal: writes, pauses, deaths, faults and damage in any order.

Each call may die at any of its steps: of the journal, the pipeline, a reseal, or a request to a bucket.
Replicas are damaged, checked, copied and deleted meanwhile. Right bytes are read, or none.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from lockgate.storage_core.errors import (
    FencedError,
    LeaseHeldError,
    LockgateError,
    MalformedRecordError,
    OutcomeUnknownError,
    SafeModeError,
    StoreUnavailableError,
)
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.blocks import BlockRecord
from lockgate.storage_core.files.files import Files, FileWriter
from lockgate.storage_core.files.namespace.members import RegisterVolume
from lockgate.storage_core.files.namespace.queries import blocks_of
from lockgate.storage_core.files.volumes.protocol import VolumeId
from lockgate.storage_core.files.volumes.replica import ReplicaState
from lockgate.storage_core.files.writing import writer as writer_module
from lockgate.storage_core.ids import file_resource
from lockgate.storage_core.journal import Leases, open_journal
from lockgate.storage_core.settings import load_settings
from tests.support.commit.destination import Crash, ManualClock, dying
from tests.support.files.faulty_volumes import FAULTS, FaultyBucket, FaultyDirectory, FaultyVolume, Inline
from tests.support.postgres import Server
from tests.support.soak import machine_settings

PATH: Final = "/a.log"
ROOT: Final = tempfile.TemporaryDirectory()
"""With the journals of all examples, and the volumes of the present one."""
EXAMPLES: Final = itertools.count()
CALLS: Final = ("create", "append", "flush", "finish", "stat", "fence", "trim", "read")
REFUSED: Final = (StoreUnavailableError, MalformedRecordError, OutcomeUnknownError)
FRAMES: Final = 3 * 512
"""Place in a log behind its header and slots."""
STEPS = st.none() | st.none() | st.integers(1, 40)
T = TypeVar("T")
numbers = st.integers(0, 2)


class FileMachine(RuleBasedStateMachine):
    """One file on three volumes, its writers, and its bytes as a model has them.

    Attributes:
        writer: The newest writer.
        paused: One before it, with its process, which does not know that it may be over.
        is_taken: Whether another process has resealed or cut the file since the pause.
        is_wanted: Whether one has begun to.
        flushed: Bytes that a flush has promised.
        written: Those, and the bytes that may be there.
        damages: Number of damages that were not repaired at once.
    """

    kinds: ClassVar[tuple[type[FaultyDirectory | FaultyBucket], ...]] = (FaultyDirectory,) * 3
    url: ClassVar = f"sqlite:///{ROOT.name}/journal.db"

    @initialize()
    def begin(self) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(writer_module, "ThreadPoolExecutor", Inline)
        self.clock = ManualClock()
        name = f"example-{next(EXAMPLES)}"
        self.folder = Path(ROOT.name, name)
        self.journal = open_journal(self.url, name, clock=self.clock)
        self.all: list[FaultyVolume] = [
            kind(self.folder / f"{number}") for number, kind in enumerate(self.kinds)
        ]
        self.volumes: dict[VolumeId, Any] = {volume.id: volume for volume in self.all}
        self.files = self._process()
        self.writer: FileWriter | None = None
        self.paused: tuple[Files, FileWriter] | None = None
        self.is_taken = self.is_wanted = False
        self.flushed, self.written = b"", b""
        self.count = self.damages = 0
        for volume in self.volumes:
            self.journal.apply(RegisterVolume(volume=volume, url=f"file:///{volume}"))
        self.files.create(PATH).close()

    def is_open(self) -> bool:
        return self.files.status(PATH).is_open

    def open_to_append(self, step: int | None) -> None:
        self._wait_for_leases()
        self.writer = self._call(lambda: self.files.append(PATH), step)
        if self.writer is not None:
            self._settle(self.writer.tell())
            self.is_wanted = False

    @rule(size=st.integers(1, 10), step=STEPS, is_flushed=st.booleans() | st.just(True))
    def write(self, size: int, step: int | None, *, is_flushed: bool) -> None:
        if self.writer is None:
            self.open_to_append(None)
        writer = self.writer
        if writer is None:
            return
        data = bytes((self.count + number) % 251 for number in range(size))
        self.count += size
        before = writer.tell()

        def call() -> bool:
            try:
                writer.write(data)
            finally:
                self.written += data[: self._end_of(writer, before + size) - before]
            if is_flushed:
                writer.flush()
            return is_flushed

        if self._call(call, step):
            self.flushed = self.written

    @staticmethod
    def _end_of(writer: FileWriter, most: int) -> int:
        """Return the position of a writer. One that died in its call may have written up to `most`."""
        try:
            return writer.tell()
        except FencedError:
            return most

    @precondition(lambda self: self.writer is not None)
    @rule(step=STEPS)
    def close(self, step: int | None) -> None:
        writer, flushed = self.writer, self.written
        assert writer is not None
        if self._call(lambda: writer.close() or True, step):
            self.flushed = flushed
            assert not self.is_open()
        elif self.writer is writer:
            self._die()
        self.writer = None

    @rule()
    def the_process_dies(self) -> None:
        self._die()

    @precondition(lambda self: self.writer is not None)
    @rule()
    def the_writer_pauses(self) -> None:
        assert self.writer is not None
        if self.paused is not None:
            self.paused[0].close()
        self.paused = self.files, self.writer
        self.files, self.writer = self._process(), None
        self.is_taken = self.is_wanted = False

    @precondition(lambda self: self.paused is not None and (self.is_taken or self.writer is None))
    @rule()
    def the_paused_writer_goes_on(self) -> None:
        assert self.paused is not None
        (files, writer), self.paused = self.paused, None
        if not self.is_taken:
            self.files.close()
            self.files, self.writer = files, writer  # the file was not resealed: it may still write
            return
        try:
            writer.write(b"!")
            writer.flush()
        except (FencedError, *REFUSED):
            files.close()
            return
        raise AssertionError("bytes were acknowledged to a writer whose file was resealed")

    @precondition(lambda self: self.writer is None)
    @rule(step=STEPS)
    def recover(self, step: int | None) -> None:
        self._wait_for_leases()
        self._call(self.files.recovery.recover_lapsed, step)
        if not self.is_open():
            self._settle(self.files.status(PATH).length_bytes)

    @precondition(lambda self: self.writer is None and not self.is_open())
    @rule(share=st.floats(0, 1), step=STEPS)
    def truncate(self, share: float, step: int | None) -> None:
        self._settle(self.files.status(PATH).length_bytes)  # a truncate that died may have closed it
        target = round(share * len(self.written))
        self.flushed = self.written[:target]
        if self._call(lambda: self.files.truncate(PATH, target) or True, step):
            self.written = self.flushed

    @rule(number=numbers, fault=st.sampled_from(("", *FAULTS)))
    def a_disk_fails_or_works_again(self, number: int, fault: str) -> None:
        self.all[number].fail(fault)

    @rule(number=numbers)
    def a_volume_goes_or_returns(self, number: int) -> None:
        self.all[number].is_up = not self.all[number].is_up

    @rule()
    def all_volumes_return_and_work(self) -> None:
        for volume in self.all:
            volume.is_up = True
            volume.fail("")

    @rule(number=numbers)
    def a_volume_restarts(self, number: int) -> None:
        self.all[number].fail("")
        self.all[number].restart()

    @rule(number=numbers, call=st.sampled_from(CALLS), is_applied=st.booleans())
    def a_call_gets_no_answer(self, number: int, call: str, *, is_applied: bool) -> None:
        volume = self.all[number]
        (volume.loses if is_applied else volume.refuses).add(call)

    @rule(number=numbers, choice=st.integers(0, 100))
    def a_byte_of_a_sealed_replica_changes(self, number: int, choice: int) -> None:
        """Damage a replica of a block that has another good one on a volume that answers."""
        volume = self.all[number]
        sealed = [one for one in self._records() if one.is_settled and volume.id in one.members]
        sealed = [one for one in sealed if one.length_bytes]
        if not sealed or not isinstance(volume, FaultyDirectory):
            return
        record = sealed[choice % len(sealed)]
        if any(self._is_good(one, record) for one in record.members if one != volume.id):
            self._damage(volume, record.block, choice * 7919, is_flip=True)
            # Repaired before another fault: a writer may rely on it alone once the others are out of reach.
            self._upkeep(None)

    def _is_good(self, volume: VolumeId, record: BlockRecord) -> bool:
        try:
            data = self.volumes[volume].read(record.block, record.stamp, 0, 1000)
            found = self.volumes[volume].stat(record.block)
        except LockgateError:
            return False
        return len(data) == record.length_bytes and found is not None and found.state is ReplicaState.SEALED

    def _damage(self, volume: FaultyDirectory, block: int, choice: int, *, is_flip: bool) -> None:
        """Flip a bit of a log, or cut it."""
        try:
            log = volume.log(block)
        except FileNotFoundError:
            return
        data = bytearray(log.read_bytes())
        at = FRAMES + choice % max(len(data.rstrip(b"\0")) - FRAMES, 1)
        if is_flip and at < len(data):
            data[at] ^= 1
        log.write_bytes(data if is_flip else data[:at])
        volume.restart()

    @rule(step=STEPS)
    def replicas_are_checked_copied_and_deleted(self, step: int | None) -> None:
        self._upkeep(step)

    def _upkeep(self, step: int | None) -> None:
        """Do what another process does: its death is not that of the writer."""

        def check_and_repair() -> None:
            list(self.files.upkeep.check().findings())
            self.files.upkeep.repair()

        try:
            self._until(step, check_and_repair)
        except (Crash, SafeModeError, *REFUSED):
            pass

    @rule()
    def read(self) -> None:
        try:
            with self.files.open(PATH) as reader:
                found = reader.read()
        except REFUSED:
            return
        assert found[: len(self.flushed)] == self.flushed
        assert self.written[: len(found)] == found

    def teardown(self) -> None:
        if not hasattr(self, "journal"):
            return
        try:
            self._end()
        finally:
            self.files.close()
            for volume in self.all:
                volume.close()
            self.journal.close()
            self.patch.undo()
            shutil.rmtree(self.folder)

    def _end(self) -> None:
        """Recover the file without faults, and compare it and its replicas."""
        self._die()
        for volume in self.all:
            volume.is_up = True
            volume.loses.clear()
            volume.refuses.clear()
            volume.fail("")
            volume.restart()
        self._wait_for_leases()
        if self.damages and any(one.why_not for one in self.files.recovery.recover_lapsed()):
            self.files.recover(PATH, accept_loss=True)  # each member that is left was damaged
            return
        assert [one.why_not for one in self.files.recovery.recover_lapsed() if one.why_not] == []
        self._settle(self.files.status(PATH).length_bytes)
        if self.damages:
            self.read()
            return
        for _ in range(2):  # a replica that a dead copier has left goes first
            self._upkeep(None)
        with self.files.open(PATH) as reader:
            assert reader.read() == self.written
        for record in self._records():
            assert record.members or not record.length_bytes  # its replicas could be created nowhere
            copies = set()
            for member in record.members:
                found = self.volumes[member].stat(record.block)
                assert (found.state, found.stamp) == (ReplicaState.SEALED, record.stamp)
                copies.add(self.volumes[member].read(record.block, record.stamp, 0, 1000))
            assert [len(copy) for copy in copies] in ([], [record.length_bytes])

    def _process(self) -> Files:
        return Files(self.journal, self.volumes, load_settings(), block_bytes=7)

    def _records(self) -> tuple[BlockRecord, ...]:
        with self.journal.reading() as reading:
            return blocks_of(reading, self.files.status(PATH).inode)

    def _die(self) -> None:
        """End the process and begin another one."""
        self.files.close()
        self.writer = None
        self.files = self._process()

    def _until(self, step: int | None, call: Callable[[], T]) -> T:
        """Make a call that dies at a step."""
        steps = itertools.count(1)

        def observe(point: str) -> None:
            if next(steps) == step:
                raise Crash(point)

        FAILPOINTS.observer = dying(observe)
        try:
            return call()
        finally:
            FAILPOINTS.observer = None

    def _call(self, call: Callable[[], T], step: int | None) -> T | None:
        """Make a call of the process; return None if it died or was refused."""
        try:
            return self._until(step, call)
        except Crash:
            self._die()
        except FencedError:
            assert self.is_wanted
            self._die()
        except (*REFUSED, LeaseHeldError):
            pass
        return None

    def _wait_for_leases(self) -> None:
        self.is_wanted = True
        if self.is_open():
            Leases(self.journal).look(file_resource(self.files.status(PATH).inode))
            self.clock.sleep(200)

    def _settle(self, length: int) -> None:
        """Take the length that a reseal or a truncate has given the file."""
        assert len(self.flushed) <= length <= len(self.written)
        self.flushed = self.written = self.written[:length]
        self.is_taken = True


class DamagedMachine(FileMachine):
    """The same with damage that stays: bits, the end of a replica, or all of it."""

    @rule(number=numbers, choice=st.integers(0, 10_000), how=st.sampled_from(("flip", "cut", "lose")))
    def a_replica_is_damaged(self, number: int, choice: int, how: str) -> None:
        volume, records = self.all[number], self._records()
        assert isinstance(volume, FaultyDirectory)
        block = records[choice % len(records)].block if records else 0
        if block in volume.blocks():
            self.damages += 1
            if how == "lose":
                volume.lose(block)
            else:
                self._damage(volume, block, choice, is_flip=how == "flip")


class BucketMachine(FileMachine):
    """The same on three volumes in buckets."""

    kinds: ClassVar = (FaultyBucket,) * 3


class MixedMachine(FileMachine):
    """The same on two directories and a bucket."""

    kinds: ClassVar = (FaultyDirectory, FaultyBucket, FaultyDirectory)


for machine, examples in ((FileMachine, 14), (DamagedMachine, 14), (BucketMachine, 4), (MixedMachine, 4)):
    machine.TestCase.settings = machine_settings(examples, 40)
TestFiles = FileMachine.TestCase
TestDamagedFiles = DamagedMachine.TestCase
TestFilesInBuckets = BucketMachine.TestCase
TestFilesOnMixedVolumes = pytest.mark.soak(MixedMachine.TestCase)


@pytest.mark.requires("postgres")
@pytest.mark.parametrize("kind", [FaultyDirectory, FaultyBucket])
@pytest.mark.soak
def test_files_are_as_in_the_model_on_postgresql(postgres: Server, kind: type[FaultyVolume]) -> None:
    """As on several machines: a journal on PostgreSQL, and volumes in directories or buckets."""
    of = {"url": postgres.new_database(f"model_{kind.__name__.lower()}"), "kinds": (kind,) * 3}
    run_state_machine_as_test(type("Machine", (FileMachine,), of), settings=machine_settings(4, 30))
