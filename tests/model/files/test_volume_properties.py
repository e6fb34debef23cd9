"""Files over real volumes and a real journal, in any order of calls, faults and deaths.

Each call may die at any of its steps: of the journal, the pipeline, a reseal, or a request to a bucket.
Replicas are damaged, reported, verified, copied and deleted meanwhile.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from lockgate.storage_core.errors import (
    FencedError,
    LeaseHeldError,
    LockgateError,
    OutcomeUnknownError,
    SafeModeError,
    StoreUnavailableError,
)
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.blocks import BlockRecord
from lockgate.storage_core.files.files import Files, FileWriter
from lockgate.storage_core.files.namespace.members import RegisterVolume
from lockgate.storage_core.files.namespace.queries import blocks_of
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId
from lockgate.storage_core.files.volumes.replica import ReplicaState
from lockgate.storage_core.ids import file_resource
from lockgate.storage_core.journal import Leases, open_journal
from lockgate.storage_core.settings import load_settings
from tests.support.commit.destination import Crash, ManualClock, dying
from tests.support.files.faulty_volumes import FAULTS, places
from tests.support.postgres import Server
from tests.support.soak import machine_settings

PATH = "/a.log"
REFUSED = (StoreUnavailableError, OutcomeUnknownError)
STEPS = st.none() | st.none() | st.integers(1, 40)
T = TypeVar("T")
numbers = st.integers(0, 2)
EXAMPLES = itertools.count()


class VolumeMachine(RuleBasedStateMachine):
    """One file on three volumes.

    No rule has a precondition: threads of a volume count steps too, so a death is not at the same one each
    time, and Hypothesis refuses choices that depend on it.

    Attributes:
        flushed: Bytes that a flush has promised.
        written: Those, and the bytes that may be there.
    """

    kind: ClassVar = "directory"
    url: ClassVar = ""
    """Database of the journals of all examples; by default each has its own."""

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        root = Path(self.folder.name)
        self.clock = ManualClock()
        self.journal = open_journal(
            self.url or f"sqlite:///{root / 'journal.db'}", f"example-{next(EXAMPLES)}", clock=self.clock
        )
        self.places = places(self.kind, root)
        self.all = [place.start() for place in self.places]
        self.volumes: dict[VolumeId, Volume] = {volume.id: volume for volume in self.all}
        self.files = self._process()
        self.writer: FileWriter | None = None
        self.flushed, self.written = b"", b""
        self.count = 0
        for volume in self.all:
            self.journal.apply(RegisterVolume(volume=volume.id, url=f"file:///{volume.id}"))
        self.files.create(PATH).close()

    def open_to_append(self, step: int | None) -> None:
        self._wait_for_leases()
        self.writer = self._call(lambda: self.files.append(PATH), step)
        if self.writer is not None:
            self._settle(self.writer.tell())

    @rule(size=st.integers(1, 10), step=STEPS)
    def write_and_flush(self, size: int, step: int | None) -> None:
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
                if self.writer is writer:
                    self.written += data[: self._end_of(writer, before + size) - before]
            writer.flush()
            return True

        if self._call(call, step):
            self.flushed = self.written

    @staticmethod
    def _end_of(writer: FileWriter, most: int) -> int:
        """Return the position of a writer. One that died in its call may have written up to `most`."""
        try:
            return writer.tell()
        except FencedError:
            return most

    @rule(step=STEPS)
    def close(self, step: int | None) -> None:
        writer, flushed = self.writer, self.written
        if writer is None:
            return
        if self._call(lambda: writer.close() or True, step):
            self.flushed = flushed
            assert not self.files.status(PATH).is_open
        else:
            self._die()
        self.writer = None

    @rule()
    def the_process_dies(self) -> None:
        self._die()

    @rule(step=STEPS)
    def recover(self, step: int | None) -> None:
        if self.writer is not None:
            return
        self._wait_for_leases()
        self._call(self.files.recovery.recover_lapsed, step)
        if not self.files.status(PATH).is_open:
            self._settle(self.files.status(PATH).length_bytes)

    @rule(share=st.floats(0, 1), step=STEPS)
    def truncate(self, share: float, step: int | None) -> None:
        if self.writer is not None or self.files.status(PATH).is_open:
            return
        self._settle(self.files.status(PATH).length_bytes)  # a truncate that died may have closed it
        target = round(share * len(self.written))
        self.flushed = self.written[:target]
        if self._call(lambda: self.files.truncate(PATH, target) or True, step):
            self.written = self.flushed

    @rule(number=numbers, fault=st.sampled_from(("", *FAULTS)))
    def a_disk_fails_or_works_again(self, number: int, fault: str) -> None:
        self.places[number].fail(fault)

    @rule(size=st.integers(1, 10), step=STEPS)
    def write_more(self, size: int, step: int | None) -> None:
        self.write_and_flush(size, step)

    @rule(number=numbers)
    def a_volume_goes_or_returns(self, number: int) -> None:
        volume = self.all[number]
        if volume.id in self.volumes:
            del self.volumes[volume.id]
        else:
            self.volumes[volume.id] = volume

    @rule(number=numbers)
    def a_volume_restarts(self, number: int) -> None:
        self.places[number].fail("")
        self.places[number].stop()
        volume = self.all[number] = self.places[number].start()
        if volume.id in self.volumes:
            self.volumes[volume.id] = volume

    @rule(number=numbers, choice=st.integers(0, 100))
    def a_byte_of_a_sealed_replica_changes(self, number: int, choice: int) -> None:
        """Damage a replica of a block that has another good one on a volume that answers."""
        damaged = self.all[number].id
        with self.journal.reading() as reading:
            records = blocks_of(reading, self.files.status(PATH).inode)
        sealed = [one for one in records if one.is_settled and damaged in one.members and one.length_bytes]
        if not sealed or self.kind != "directory":
            return
        record = sealed[choice % len(sealed)]
        if not any(self._is_good(one, record) for one in record.members if one != damaged):
            return
        logs = sorted((Path(self.folder.name) / f"volume-{number}/blocks/{record.block:020d}").glob("*.log"))
        if logs:
            data = bytearray(logs[-1].read_bytes())
            data[choice * 7919 % len(data)] ^= 1
            logs[-1].write_bytes(data)
            # Repaired before another fault: a writer may rely on it alone once the others are out of reach.
            self._upkeep(self._check_and_repair, None)

    def _is_good(self, volume: VolumeId, record: BlockRecord) -> bool:
        try:
            data = self.volumes[volume].read(record.block, record.stamp, 0, 1000)
            found = self.volumes[volume].stat(record.block)
        except (KeyError, LockgateError):
            return False
        return len(data) == record.length_bytes and found is not None and found.state is ReplicaState.SEALED

    @rule(step=STEPS)
    def replicas_are_verified_copied_and_deleted(self, step: int | None) -> None:
        self._upkeep(self._check_and_repair, step)

    def _check_and_repair(self) -> None:
        list(self.files.upkeep.check().findings())
        self.files.upkeep.repair()

    def _upkeep(self, call: Callable[[], object], step: int | None) -> None:
        """Do what another process does: its death is not that of the writer."""
        writer, files = self.writer, self.files
        steps = itertools.count(1)

        def observe(point: str) -> None:
            if next(steps) == step:
                raise Crash(point)

        FAILPOINTS.observer = dying(observe)
        try:
            call()
        except (Crash, SafeModeError, *REFUSED):
            pass
        finally:
            FAILPOINTS.observer = None
        assert (self.writer, self.files) == (writer, files)

    @rule()
    def read(self) -> None:
        try:
            with self.files.open(PATH) as reader:
                found = reader.read()
        except StoreUnavailableError:
            return
        assert found[: len(self.flushed)] == self.flushed
        assert self.written[: len(found)] == found

    def teardown(self) -> None:
        if not hasattr(self, "journal"):
            return
        FAILPOINTS.observer = None
        self._die()
        for number in range(3):
            self.a_volume_restarts(number)
        self.volumes.update({volume.id: volume for volume in self.all})
        self._wait_for_leases()
        assert [one.why_not for one in self.files.recovery.recover_lapsed() if one.why_not] == []
        with self.files.open(PATH) as reader:
            self._settle(len(reader.read()))
        for _ in range(2):  # a replica that a dead copier has left goes first
            self._upkeep(self._check_and_repair, None)
        self.read()
        with self.journal.reading() as reading:
            records = blocks_of(reading, self.files.status(PATH).inode)
        for record in records:
            assert record.members or not record.length_bytes  # its replicas could be created nowhere
            for member in record.members:
                found = self.volumes[member].stat(record.block)
                assert found is not None
                assert (found.state, found.stamp) == (ReplicaState.SEALED, record.stamp)
                data = self.volumes[member].read(record.block, record.stamp, 0, 1000)
                assert len(data) == record.length_bytes
        self.files.close()
        for place in self.places:
            place.stop()
        self.journal.close()
        self.folder.cleanup()

    def _process(self) -> Files:
        return Files(self.journal, self.volumes, load_settings(), block_bytes=7)

    def _die(self) -> None:
        """End the process and begin another one."""
        self.files.close()
        self.writer = None
        self.files = self._process()

    def _call(self, call: Callable[[], T], step: int | None) -> T | None:
        """Make a call that dies at a step; return None if it died or was refused."""
        steps = iter(range(1, 1000))

        def observe(point: str) -> None:
            if next(steps) == step:
                raise Crash(point)

        FAILPOINTS.observer = dying(observe)
        try:
            return call()
        except Crash:
            FAILPOINTS.observer = None
            self._die()
        except (*REFUSED, LeaseHeldError):
            pass
        finally:
            FAILPOINTS.observer = None
        return None

    def _wait_for_leases(self) -> None:
        if self.files.status(PATH).is_open:
            Leases(self.journal).look(file_resource(self.files.status(PATH).inode))
            self.clock.sleep(200)

    def _settle(self, length: int) -> None:
        """Take the length that a reseal has given the file."""
        assert len(self.flushed) <= length <= len(self.written)
        self.flushed = self.written = self.written[:length]


class BucketMachine(VolumeMachine):
    """The same on three volumes in buckets."""

    kind: ClassVar = "s3"


class MixedMachine(VolumeMachine):
    """The same on two directories and a bucket."""

    kind: ClassVar = "mixed"


for machine in (VolumeMachine, BucketMachine, MixedMachine):
    machine.TestCase.settings = machine_settings(12, 30)
TestVolumesInDirectories = VolumeMachine.TestCase
TestVolumesInBuckets = pytest.mark.soak(BucketMachine.TestCase)
TestMixedVolumes = pytest.mark.soak(MixedMachine.TestCase)


@pytest.mark.requires("postgres")
@pytest.mark.parametrize("kind", ["directory", "s3"])
@pytest.mark.soak
def test_files_are_as_in_the_model_on_postgresql(postgres: Server, kind: str) -> None:
    """As on several machines: a journal on PostgreSQL, and volumes in directories or buckets."""
    of = {"url": postgres.new_database(f"model_volumes_{kind}"), "kind": kind}
    machine = type("Machine", (VolumeMachine,), of)
    run_state_machine_as_test(machine, settings=machine_settings(4, 30))
