"""Full disks, failing syncs and members that are away, through `Files`: no acknowledged byte is lost."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockgate.storage_core.errors import OutcomeUnknownError, StoreUnavailableError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.volumes.directory.directory_volume import DirectoryVolume
from lockgate.storage_core.files.volumes.disk import Disk
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId
from lockgate.storage_core.journal import Journal
from lockgate.storage_core.settings import load_settings
from tests.support.commit.destination import Crash, ManualClock, dying
from tests.support.journal.checkpoints import JournalWorld
from tests.support.soak import sample, soak_only

TEXT = b"abcdefghij" * 2
PIECES = (b"abc", b"defgh", b"ijklmnopqrst", b"u")
REFUSED = (StoreUnavailableError, OutcomeUnknownError)


class FailingDisk(Disk):
    """A disk whose calls of one kind fail, a number of times from the n-th on."""

    def __init__(self) -> None:
        self.call, self.error = "", 0
        self.fails = range(0)
        self.count = 0

    def write(self, file: int, data: bytes, position: int) -> None:
        if self._is_due("write"):
            super().write(file, data[: len(data) // 2], position)
            raise OSError(self.error, "on purpose")
        super().write(file, data, position)

    def sync(self, file: int) -> None:
        if self._is_due("sync"):
            raise OSError(self.error, "on purpose")
        super().sync(file)

    def sync_data(self, file: int) -> None:
        if self._is_due("sync"):
            raise OSError(self.error, "on purpose")
        super().sync_data(file)

    def _is_due(self, call: str) -> bool:
        if call != self.call:
            return False
        self.count += 1
        return self.count in self.fails


class World:
    """A journal and three volumes on failing disks."""

    def __init__(self, journals: JournalWorld, root: Path) -> None:
        self.clock: ManualClock = journals.clock
        self.journal: Journal = journals.open()
        self.folders = [root / f"volume-{number}" for number in range(3)]
        self.disks = [FailingDisk() for _ in self.folders]
        self.opened: list[DirectoryVolume] = []
        self.volumes: dict[VolumeId, Volume] = {}
        self.restart()

    def restart(self) -> None:
        """Repair the disks, and restart the volumes."""
        for volume in self.opened:
            volume.close()
        for disk in self.disks:
            disk.fails = range(0)
        self.opened = [
            DirectoryVolume(folder, disk=disk) for folder, disk in zip(self.folders, self.disks, strict=True)
        ]
        self.volumes.update({volume.id: volume for volume in self.opened})

    def process(self) -> Files:
        return Files(self.journal, self.volumes, load_settings(), block_bytes=8)

    def recovered(self, path: str) -> bytes:
        files = self.process()
        status = files.status(path)
        if status.is_open:
            files.recovery.lapses_in_s(status.inode)
            self.clock.sleep(200)
            assert [one.why_not for one in files.recovery.recover_lapsed()] == [""]
        with files.open(path) as reader:
            found = reader.read()
        assert [one.problem for one in files.check(path, verify=True).findings()] == []
        files.close()
        return found


@pytest.fixture
def world(journals: JournalWorld, tmp_path: Path) -> Iterator[World]:
    world = World(journals, tmp_path)
    yield world
    FAILPOINTS.observer = None
    for volume in world.opened:
        volume.close()
    world.journal.close()


@pytest.mark.parametrize("times", [1, soak_only(1000)])
@pytest.mark.parametrize(
    ("call", "error", "sick"),
    [
        ("write", errno.ENOSPC, 1),
        ("sync", errno.EIO, 3),
        soak_only("write", errno.ENOSPC, 3),
        soak_only("sync", errno.EIO, 1),
    ],
)
def test_no_acknowledged_byte_is_lost_when_disks_fail_at_any_call(
    world: World, call: str, error: int, sick: int, times: int
) -> None:
    """The calls of all sick disks fail from the same one on; the writer tries a flush twice."""
    for first in itertools.count(1):
        path = f"/{first}.log"
        files = world.process()
        for disk in world.disks[:sick]:
            disk.call, disk.error, disk.count, disk.fails = call, error, 0, range(first, first + times)
        flushed = sent = b""
        failed = 0
        writer = files.create(path)
        for piece in PIECES:
            for attempt in range(2):
                try:
                    if not attempt:
                        writer.write(piece)
                    writer.flush()
                except REFUSED:
                    failed += 1
                else:
                    flushed = sent + piece
                    with files.open(path) as reader:
                        assert reader.read() == flushed
                    break
            sent += piece
            if flushed != sent:
                break  # its bytes are kept by the writer, and not acknowledged
        try:
            writer.close()
            flushed = sent
        except REFUSED:
            failed += 1
        files.close()
        reached = world.disks[0].count >= first
        world.restart()
        found = world.recovered(path)
        assert found.startswith(flushed)
        assert sent.startswith(found)
        if sick == 1:
            assert not failed
            assert found == b"".join(PIECES)
        if not reached:
            assert first > 5
            return


@pytest.mark.parametrize("length", range(21))
def test_a_truncate_at_every_byte_with_a_member_away_and_back(world: World, length: int) -> None:
    files = world.process()
    with files.create("/a.log") as writer:
        writer.write(TEXT)
    gone = sorted(world.volumes)[length % 3]
    volume = world.volumes.pop(gone)
    files.truncate("/a.log", length)
    assert files.open("/a.log").read() == TEXT[:length]
    world.volumes[gone] = volume
    with files.append("/a.log") as writer:
        writer.write(b"-end")
    assert files.open("/a.log").read() == TEXT[:length] + b"-end"
    files.close()


@pytest.mark.parametrize("length", sample(range(21), 10))
def test_a_truncate_that_dies_with_a_member_away_leaves_the_old_length_or_the_new(
    world: World, length: int
) -> None:
    for die_at in itertools.count(length % 3, 3):  # each step at some length
        path = f"/{die_at}.log"
        dying_process = world.process()
        with dying_process.create(path) as writer:
            writer.write(TEXT)
        gone = sorted(world.volumes)[die_at % 3]
        volume = world.volumes.pop(gone)
        steps = itertools.count()

        def die(point: str, die_at: int = die_at, steps: Iterator[int] = steps) -> None:
            if next(steps) == die_at:
                raise Crash(point)

        FAILPOINTS.observer = dying(die)
        try:
            dying_process.truncate(path, length)
            has_died = False
        except Crash:
            has_died = True
        finally:
            FAILPOINTS.observer = None
            dying_process.close()
        if die_at % 2:
            world.volumes[gone] = volume
        files = world.process()
        status = files.status(path)
        if status.is_open:
            files.recovery.lapses_in_s(status.inode)
            world.clock.sleep(200)
            files.recovery.recover_lapsed()
        world.volumes[gone] = volume
        world.clock.sleep(200)
        files.recovery.recover_lapsed()
        assert files.open(path).read() in {TEXT, TEXT[:length]}
        files.truncate(path, length)
        assert files.open(path).read() == TEXT[:length]
        files.close()
        if not has_died:
            assert die_at > 8
            return
