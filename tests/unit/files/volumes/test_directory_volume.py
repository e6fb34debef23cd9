"""A volume in a directory: crashes, faults of the disk, and processes that race for one block."""

from __future__ import annotations

import errno
import itertools
import os
import tracemalloc
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest

from lockgate.storage_core.errors import (
    ConflictError,
    FencedError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    RecordVersionError,
    StoreUnavailableError,
)
from lockgate.storage_core.files.blocks import BlockRecord
from lockgate.storage_core.files.reader import Reader
from lockgate.storage_core.files.volumes import disk as disk_calls
from lockgate.storage_core.files.volumes.directory import block_logs, log_writer, volume_folder
from lockgate.storage_core.files.volumes.directory.directory_volume import DirectoryVolume
from lockgate.storage_core.files.volumes.directory.log_format import HEAD_BYTES
from lockgate.storage_core.files.volumes.disk import Disk
from lockgate.storage_core.files.volumes.replica import BlockId, Replica, ReplicaState
from lockgate.storage_core.stamp import Stamp
from tests.support.commit.destination import Crash, ManualClock

B, OTHER = BlockId(7), BlockId(8)
S0, S1, S2, S3, S9 = (Stamp(1, number) for number in (0, 1, 2, 3, 9))
WRITING, SEALED = ReplicaState.WRITING, ReplicaState.SEALED
CALLS = {
    "write", "truncate", "sync", "sync_data", "link", "rename", "unlink", "remove_tree", "sync_directory",
}  # fmt: skip


class SteppingDisk(Disk):
    """A disk that does something before each call, or dies in it, in the middle of a write, or fails it."""

    def __init__(self, dies_at: int = 0) -> None:
        self.calls = 0
        self.dies_at = dies_at
        self.fails: dict[str, int] = {}
        self.before: Callable[[int], None] = lambda _: None

    def __getattribute__(self, name: str) -> object:
        found = super().__getattribute__(name)
        if name not in CALLS:
            return found

        def call(*arguments: object) -> None:
            self.step()
            if 0 < self.dies_at <= self.calls:
                if name == "write" and self.calls == self.dies_at:
                    file, position, *pieces = arguments
                    data = b"".join(pieces)  # type: ignore[arg-type]
                    found(file, position, data[: len(data) // 2])  # type: ignore[operator]
                raise Crash
            if name in self.fails:
                raise OSError(self.fails[name], "on purpose")
            found(*arguments)  # type: ignore[operator]

        return call

    def step(self) -> None:
        self.calls += 1
        self.before(self.calls)


def _flush(volume: DirectoryVolume, stamp: Stamp, offset: int, data: bytes) -> None:
    volume.append(B, stamp, offset, data)
    volume.flush(B, stamp)
    volume.acknowledge(B, stamp, offset + len(data))


def _written(folder: Path, disk: Disk | None = None) -> DirectoryVolume:
    volume = DirectoryVolume(folder, disk=disk)
    volume.create(B, S1)
    _flush(volume, S1, 0, b"abc")
    return volume


def _log(folder: Path, stamp: Stamp = S1, suffix: str = "log") -> Path:
    return folder / "blocks" / f"{B:020d}" / f"{stamp.epoch:018d}-{stamp.sequence:020d}.{suffix}"


def _whole(folder: Path, committed: Stamp = S0) -> tuple[Replica, bytes]:
    """Fence the replica in another process, and read it."""
    with DirectoryVolume(folder) as volume:
        fenced = volume.fence(B, S9, committed)
        assert fenced.damage == ""
        return fenced, volume.read(B, S9, 0, 100)


def test_a_crash_at_every_call_to_the_disk_loses_no_flushed_byte_and_no_fence(tmp_path: Path) -> None:
    def live(folder: Path, disk: Disk) -> None:
        nonlocal flushed, fenced
        with DirectoryVolume(folder, disk=disk) as volume:
            volume.create(B, S1)
            fenced = S1
            _flush(volume, S1, 0, b"abcdef")
            flushed = b"abcdef"
            volume.fence(B, S2, S1)
            fenced, flushed = S2, b"abcd"  # the trim may or may not be applied from here on
            volume.trim(B, S2, 4)
            volume.finish(B, S2, 4, WRITING)
            _flush(volume, S2, 4, b"XY")
            flushed = b"abcdXY"
            volume.finish(B, S2, 6, SEALED)

    for dies_at in itertools.count(1):
        folder, flushed, fenced = tmp_path / str(dies_at), b"", S0
        try:
            live(folder, SteppingDisk(dies_at))
        except Crash:
            pass
        else:
            break
        with DirectoryVolume(folder) as volume:
            found = volume.stat(B)
            if found is None:
                assert fenced == S0
                continue
            assert found.stamp >= fenced
            assert found.damage == ""
            assert volume.read(B, found.stamp, 0, 100).startswith(flushed)
            length = volume.fence(B, S9, fenced).length_bytes
            assert volume.append(B, S9, length, b"on") == length + 2
            assert volume.flush(B, S9) == length + 2
            assert volume.read(B, S9, 0, 100).startswith(flushed)
            assert volume.read(B, S9, length, 9) == b"on"
            assert not [path for path in _log(folder).parent.iterdir() if path.suffix == ".new"]
    assert dies_at > 30


def _at_each_step(  # noqa: PLR0917 - a story in its order
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    prepare: Callable[[DirectoryVolume], object],
    call: Callable[[DirectoryVolume], object],
    meanwhile: Callable[[DirectoryVolume], object],
    check: Callable[[Path, bool, bool], object],
) -> None:
    """Make a call, and let another process make another one at each of its steps.

    Args:
        tmp_path: Directory of the test.
        monkeypatch: For the listings of directories, which are steps, too.
        prepare: What was done before, by the process of the call.
        call: The call.
        meanwhile: The other one.
        check: Gets the folder, and whether each of both was not refused.
    """
    names_in = block_logs.names_in
    for at in itertools.count(1):
        folder, disk, other = tmp_path / f"{at}", SteppingDisk(), list[bool]()
        volume, there = DirectoryVolume(folder, disk=disk), DirectoryVolume(folder)
        prepare(volume)

        def before(
            number: int, at: int = at, there: DirectoryVolume = there, other: list[bool] = other
        ) -> None:
            if number == at:
                monkeypatch.setattr(block_logs, "names_in", names_in)
                other.append(_is_done(meanwhile, there))
                monkeypatch.setattr(block_logs, "names_in", stepping)

        def stepping(path: str, disk: SteppingDisk = disk) -> list[str]:
            disk.step()
            return names_in(path)

        monkeypatch.setattr(block_logs, "names_in", stepping)
        disk.calls, disk.before = 0, before
        is_done = _is_done(call, volume)
        monkeypatch.setattr(block_logs, "names_in", names_in)
        if not other:
            break
        check(folder, is_done, other[0])
    assert at > 3


def _is_done(call: Callable[[DirectoryVolume], object], volume: DirectoryVolume) -> bool:
    try:
        call(volume)
    except (FencedError, ConflictError):
        return False
    except ObjectNotFoundError:
        assert volume.stat(B) is None
        return False
    return True


def _append(stamp: Stamp, offset: int, data: bytes) -> Callable[[DirectoryVolume], object]:
    return lambda volume: _flush(volume, stamp, offset, data)


def _fence_and_append(
    stamp: Stamp, data: bytes, committed: Stamp = S1
) -> Callable[[DirectoryVolume], object]:
    def call(volume: DirectoryVolume) -> None:
        _flush(volume, stamp, volume.fence(B, stamp, committed).length_bytes, data)

    return call


def _prepared(volume: DirectoryVolume) -> None:
    volume.create(B, S1)
    _flush(volume, S1, 0, b"abc")


def _check_fenced(folder: Path, is_flushed: bool, is_fenced: bool) -> None:
    assert is_fenced
    _, found = _whole(folder)
    assert found in ({b"abcdefXY"} if is_flushed else {b"abcXY", b"abcdefXY"})


def test_a_fence_at_each_step_of_a_flush_has_its_bytes_or_refuses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush, fence = _append(S1, 3, b"def"), _fence_and_append(S2, b"XY")
    _at_each_step(tmp_path, monkeypatch, _prepared, flush, fence, _check_fenced)


def test_a_flush_at_each_step_of_a_fence_is_in_it_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers: list[DirectoryVolume] = []

    def prepare(volume: DirectoryVolume) -> None:
        writers.append(DirectoryVolume(Path(volume.path(B)).parent.parent))
        _prepared(writers[-1])

    _at_each_step(
        tmp_path,
        monkeypatch,
        prepare,
        _fence_and_append(S2, b"XY"),
        lambda _: _flush(writers[-1], S1, 3, b"def"),
        lambda folder, is_fenced, is_flushed: _check_fenced(folder, is_flushed, is_fenced),
    )


@pytest.mark.parametrize("committed", [S0, S1])  # the newer one deletes the log at S1, or keeps it
@pytest.mark.parametrize("is_older_first", [True, False])
def test_of_two_fences_the_newer_one_has_what_the_older_one_was_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_older_first: bool, committed: Stamp
) -> None:
    """The older one is interrupted at each step by the newer one, or the other way round."""

    def check(folder: Path, is_first: bool, is_second: bool) -> None:
        is_older, is_newer = (is_first, is_second) if is_older_first else (is_second, is_first)
        assert is_newer
        _, found = _whole(folder)
        assert found in ({b"abc2233"} if is_older else {b"abc33", b"abc2233"})

    _at_each_step(
        tmp_path,
        monkeypatch,
        _prepared,
        _fence_and_append(*((S2, b"22") if is_older_first else (S3, b"33")), committed),
        _fence_and_append(*((S3, b"33") if is_older_first else (S2, b"22")), committed),
        check,
    )


def test_a_fence_at_each_step_of_a_creation_stops_it_or_finds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def create(volume: DirectoryVolume) -> None:
        volume.create(B, S1)
        _flush(volume, S1, 0, b"abc")

    def check(folder: Path, is_created: bool, is_fenced: bool) -> None:
        with DirectoryVolume(folder) as volume:
            found = volume.stat(B)
            assert found is not None
            assert (found.stamp, found.length_bytes) in {(S2, 0), (S2, 3), (S1, 3)}
            assert (found.stamp == S2) == is_fenced
            if is_created and is_fenced:
                assert found.length_bytes == 3

    _at_each_step(
        tmp_path, monkeypatch, lambda _: None, create, lambda volume: volume.fence(B, S2, S0), check
    )


@pytest.mark.parametrize("name", ["delete", "quarantine"])
def test_a_fence_at_each_step_of_a_deletion_comes_after_it_or_stops_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def check(folder: Path, is_deleted: bool, is_fenced: bool) -> None:
        with DirectoryVolume(folder) as volume:
            found = volume.stat(B)
            assert (found is not None and found.stamp == S2 and found.length_bytes == 5) == is_fenced

    def call(volume: DirectoryVolume) -> None:
        getattr(volume, name)(B, S1)

    _at_each_step(tmp_path, monkeypatch, _prepared, call, _fence_and_append(S2, b"XY"), check)


def test_two_processes_that_create_one_replica_do_not_both_write_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def create(volume: DirectoryVolume) -> None:
        assert volume.create(B, S1).stamp == S1
        _flush(volume, S1, 0, b"abc")

    def check(folder: Path, is_first: bool, is_second: bool) -> None:
        assert is_first or is_second
        assert _whole(folder)[1] == b"abc"
        assert [path.name for path in _log(folder).parent.iterdir() if path.suffix == ".new"] == []

    _at_each_step(tmp_path, monkeypatch, lambda _: None, create, create, check)


def test_a_writer_that_wakes_after_a_fence_is_refused_and_its_bytes_are_never_read(tmp_path: Path) -> None:
    volume = _written(tmp_path)
    with DirectoryVolume(tmp_path) as other:
        _fence_and_append(S2, b"XY")(other)
        assert volume.append(B, S1, 3, b"late") == 7
        for call in (
            lambda: volume.flush(B, S1),
            lambda: volume.append(B, S1, 7, b"later"),
            lambda: volume.trim(B, S1, 1),
            lambda: volume.finish(B, S1, 7, SEALED),
        ):
            with pytest.raises(FencedError):
                call()
        for one in (volume, other, DirectoryVolume(tmp_path)):
            assert one.read(B, S1, 0, 100) == b"abc"
            assert one.read(B, S2, 0, 100) == b"abcXY"
    assert _whole(tmp_path)[1] == b"abcXY"


def test_a_read_at_an_older_stamp_has_nothing_that_a_trim_has_cut_since(tmp_path: Path) -> None:
    with _written(tmp_path) as volume, DirectoryVolume(tmp_path) as other:
        assert volume.read(B, S1, 0, 9) == other.read(B, S1, 0, 9) == b"abc"
        other.fence(B, S2, S1)
        other.trim(B, S2, 1)
        _flush(other, S2, 1, b"XY")
        assert volume.read(B, S1, 0, 9) == other.read(B, S1, 0, 9) == b"a"


def test_what_another_process_writes_is_read_as_it_grows(tmp_path: Path) -> None:
    with _written(tmp_path) as volume, DirectoryVolume(tmp_path) as other:
        whole = b"abc"
        for number in range(40):
            found = other.stat(B)
            assert found is not None
            assert (found.length_bytes, found.acknowledged_bytes) == (len(whole), len(whole))
            assert other.read(B, S1, 0, 1000) == whole
            _flush(volume, S1, len(whole), b"%03d" % number)
            whole += b"%03d" % number
        with pytest.raises(ConflictError, match="another process"):
            other.append(B, S1, len(whole), b"x")
        assert other.append(B, S1, 0, whole) == len(whole)


def test_a_copy_of_a_chain_of_logs_is_read_as_one_and_old_logs_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_writer, "SPAN_BYTES", 4)
    with DirectoryVolume(tmp_path) as volume:
        volume.create(B, S0)
        _flush(volume, S0, 0, whole := b"first")
        for number in range(1, 9):
            stamp, before = Stamp(2, number), Stamp(2, number - 1) if number > 1 else S0
            assert volume.fence(B, stamp, before).acknowledged_bytes == len(whole)
            if number % 3 == 0:
                whole = whole[:-3]
                volume.trim(B, stamp, len(whole))
            _flush(volume, stamp, len(whole), b"%d" % number)
            whole += b"%d" % number
            volume.finish(B, stamp, len(whole), SEALED)
            for one in (volume, DirectoryVolume(tmp_path)):
                for offset, size in itertools.product(range(len(whole)), range(len(whole))):
                    assert one.read(B, stamp, offset, size) == whole[offset : offset + size]
            assert volume.replicas(None, 1) == (volume.stat(B),)
            assert len(list(_log(tmp_path).parent.iterdir())) < 5


def test_large_appends_are_begun_to_be_written_before_their_sync_and_read_from_any_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Mock()
    monkeypatch.setattr(log_writer, "_BEGUN_BYTES", 1)
    monkeypatch.setattr(disk_calls, "_sync_file_range", begin)
    large = bytes(range(256)) * 256
    whole = b"abc" + large + b"small" + large
    with _written(tmp_path) as volume:
        begin.assert_not_called()
        for piece in (large, b"small", large):
            volume.append(B, S1, volume.stat(B).length_bytes, piece)  # type: ignore[union-attr]
        assert begin.call_count == 2
        assert volume.stat(B).durable_bytes == 3  # type: ignore[union-attr]
        volume.flush(B, S1)
        for one in (volume, DirectoryVolume(tmp_path)):
            for offset, size in itertools.product((0, 3, 65_538, 65_539, 65_544, len(whole)), (1, 6, 70_000)):
                assert one.read(B, S1, offset, size) == whole[offset : offset + size]


def test_small_flushes_seldom_lengthen_the_log_and_a_sealed_one_has_no_zeros(tmp_path: Path) -> None:
    sizes = set[int]()
    with _written(tmp_path) as volume:
        for number in range(300):
            _flush(volume, S1, 3 + 1000 * number, b"%04d" % number * 250)
            sizes.add(_log(tmp_path).stat().st_size)
        assert len(sizes) < 20
        volume.finish(B, S1, 300_003, SEALED)
        assert _log(tmp_path).stat().st_size < 300_003 + 302 * HEAD_BYTES + 4096


def test_a_block_of_very_many_small_frames_takes_few_bytes_of_memory_for_each(tmp_path: Path) -> None:
    count = 5_000
    with _written(tmp_path) as volume:
        tracemalloc.start()
        for number in range(count):
            volume.append(B, S1, 3 + number, b"x")
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert taken < 100 * count


def test_a_full_disk_refuses_an_append_and_keeps_what_is_flushed(tmp_path: Path) -> None:
    disk = SteppingDisk()
    with _written(tmp_path, disk) as volume:
        disk.fails = {"write": errno.ENOSPC}
        with pytest.raises(StoreUnavailableError, match="full"):
            volume.append(B, S1, 3, b"def")
        volume.acknowledge(B, S1, 3)
        disk.fails = {}
        _flush(volume, S1, 3, b"xyz")
        assert volume.read(B, S1, 0, 9) == _whole(tmp_path)[1] == b"abcxyz"


def test_a_failed_sync_is_not_repeated_and_its_bytes_do_not_come_back(tmp_path: Path) -> None:
    disk = SteppingDisk()
    with _written(tmp_path, disk) as volume:
        volume.append(B, S1, 3, b"def")
        disk.fails = {"sync_data": errno.EIO}
        with pytest.raises(OutcomeUnknownError):
            volume.flush(B, S1)
        disk.fails = {}
        for call in (
            lambda: volume.flush(B, S1),
            lambda: volume.append(B, S1, 6, b"ghi"),
            lambda: volume.finish(B, S1, 6, SEALED),
        ):
            with pytest.raises(ConflictError, match="failed"):
                call()
        assert volume.read(B, S1, 0, 9) == b"abc"
        assert volume.fence(B, S2, S1).length_bytes == 3
        assert volume.read(B, S2, 0, 9) == b"abc"


def test_what_a_log_does_not_call_durable_is_made_so_before_it_is_shown_and_copied_by_a_fence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its writer knows whether its sync has failed, or an NFS server has the bytes in memory only."""
    large, synced, sync = b"x" * 2**21, [], os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda file: synced.append(os.fstat(file).st_ino) or sync(file))
    with _written(tmp_path) as volume, DirectoryVolume(tmp_path) as other:
        _flush(volume, S1, 3, large)
        durable = _log(tmp_path).stat().st_size
        synced.clear()
        found = other.stat(B)
        assert (found.durable_bytes if found else 0, synced) == (3 + len(large), [])
        volume.append(B, S1, 3 + len(large), b"not flushed")
        found = other.stat(B)
        assert (found.durable_bytes if found else 0, len(synced)) == (14 + len(large), 1)
        assert other.fence(B, S2, S1).length_bytes == 14 + len(large)
        assert other.read(B, S1, 3 + len(large), 99) == b"not flushed"
    with _log(tmp_path, suffix="fenced").open("r+b") as file:
        file.truncate(durable)
    assert _whole(tmp_path)[0].length_bytes == 14 + len(large)
    with DirectoryVolume(tmp_path) as third:
        assert third.read(B, S9, 0, 2**22) == b"abc" + large + b"not flushed"


@pytest.mark.parametrize("number", [1, 2])
def test_a_creation_whose_name_may_not_be_durable_is_not_taken_for_done(tmp_path: Path, number: int) -> None:
    disk = SteppingDisk()
    with _written(tmp_path, disk) as volume:
        syncs = itertools.count(1)
        names: dict[str, bool] = {}

        def sync_directory(folder: Path) -> None:
            names[folder.name] = next(syncs) != number
            if not names[folder.name]:
                raise OSError(errno.EIO, "on purpose")

        disk.__dict__["sync_directory"] = sync_directory
        with pytest.raises(OutcomeUnknownError):
            volume.create(OTHER, S1)
        volume.create(OTHER, S1)
        try:
            volume.append(OTHER, S1, 0, b"x")
            volume.flush(OTHER, S1)
        except ConflictError:
            volume.fence(OTHER, S2, S1)
            volume.append(OTHER, S2, 0, b"x")
            volume.flush(OTHER, S2)
        assert names == {"blocks": True, f"{OTHER:020d}": True}


def test_a_claim_of_a_process_that_has_died_does_not_keep_a_replica_for_ever(tmp_path: Path) -> None:
    with _written(tmp_path) as volume:
        claim = _log(tmp_path, S2, "abcd.new")
        claim.touch()
        assert not volume.delete(B, S1)
        os.utime(claim, (0, 0))
        assert volume.delete(B, S1)
        assert volume.stat(B) is None


def test_a_writer_that_is_interrupted_in_a_write_takes_no_more(tmp_path: Path) -> None:
    disk = SteppingDisk()
    with _written(tmp_path, disk) as volume:

        def interrupt(_: int) -> None:
            raise KeyboardInterrupt

        disk.before = interrupt
        with pytest.raises(KeyboardInterrupt):
            volume.append(B, S1, 3, b"def")
        disk.before = lambda _: None
        with pytest.raises(ConflictError):
            volume.append(B, S1, 3, b"xyz")
        assert volume.fence(B, S2, S1).length_bytes == 3


def test_logs_stay_open_while_they_are_written_and_never_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_logs() -> int:
        links = (Path("/proc/self/fd") / number for number in os.listdir("/proc/self/fd"))  # noqa: PTH208
        named = [os.readlink(link) for link in links if link.is_symlink()]  # noqa: PTH115
        return sum(name.startswith(str(tmp_path)) for name in named)

    monkeypatch.setattr(log_writer, "_KEPT_OPEN", len(log_writer._kept_open) + 2)
    blocks = [BlockId(number) for number in range(1, 5)]
    with DirectoryVolume(tmp_path) as volume:
        for block in blocks:
            volume.create(block, S1)
            for at in (0, 1):
                volume.append(block, S1, at, b"x")
                volume.flush(block, S1)
        assert open_logs() == 2
        volume.finish(blocks[0], S1, 2, SEALED)
        volume.delete(blocks[1], S1)
        volume.quarantine(blocks[2], S1)
        assert open_logs() == 0
        volume.append(blocks[3], S1, 2, b"z")
        volume.flush(blocks[3], S1)
        assert (open_logs(), volume.read(blocks[3], S1, 0, 9)) == (1, b"xxz")
    assert open_logs() == 0


def test_a_log_of_a_newer_program_is_refused_and_not_set_aside(tmp_path: Path) -> None:
    _written(tmp_path).close()
    data = _log(tmp_path).read_bytes()
    _log(tmp_path).write_bytes(data[:4] + (9).to_bytes(2) + (2**16 - 10).to_bytes(2) + data[8:])
    with DirectoryVolume(tmp_path) as volume:
        for call in (
            lambda: volume.stat(B),
            lambda: volume.replicas(None, 1),
            lambda: volume.fence(B, S2, S1),
            lambda: volume.quarantine(B, S1),
        ):
            with pytest.raises(RecordVersionError, match="version 9"):
                call()


def test_a_replica_that_is_set_aside_is_neither_listed_nor_served_and_kept(tmp_path: Path) -> None:
    _written(tmp_path).close()
    for _ in range(2):
        with DirectoryVolume(tmp_path) as volume:
            volume.create(B, S1)
            used = volume.usage().used_bytes
            assert not volume.quarantine(B, S0)
            assert volume.quarantine(B, S1)
            assert not volume.quarantine(B, S1)
            assert (volume.stat(B), volume.replicas(None, 9)) == (None, ())
            assert (volume.quarantined(None, 9), volume.quarantined(B, 9)) == ((B,), ())
            assert volume.usage().used_bytes == used
    logs = list((tmp_path / "quarantine").glob("*/*/*.log"))
    assert sorted(b"abc" in path.read_bytes() for path in logs) == [False, True]
    with DirectoryVolume(tmp_path) as volume:
        assert volume.discard(B)
        assert not volume.discard(B)
        assert volume.quarantined(None, 9) == ()


@pytest.mark.parametrize("name", ["delete", "quarantine"])
def test_a_crash_at_each_call_of_a_deletion_leaves_the_replica_whole_or_gone(
    tmp_path: Path, name: str
) -> None:
    for dies_at in itertools.count(1):
        folder = tmp_path / str(dies_at)
        _written(folder).close()
        with DirectoryVolume(folder, disk=SteppingDisk(dies_at)) as volume:
            try:
                getattr(volume, name)(B, S1)
            except Crash:
                pass
            else:
                break
        with DirectoryVolume(folder) as volume:
            found = volume.stat(B)
            assert found is None or volume.read(B, S1, 0, 9) == b"abc"
            assert getattr(volume, name)(B, S1) is (found is not None)
            assert volume.stat(B) is None
            assert (volume.quarantined(None, 9) == (B,)) == (name == "quarantine")
        assert not any((folder / "deleted").glob("*/*"))
    assert dies_at > 3


def test_a_directory_that_has_not_the_volume_is_refused_and_nothing_is_made_there(tmp_path: Path) -> None:
    with DirectoryVolume(tmp_path / "volume") as volume:
        known = volume.id
        volume.claim("one")
        volume.claim("one")
        with pytest.raises(ConflictError, match="LOCKGATE_JOURNAL_URL"):
            volume.claim("two")
    assert DirectoryVolume(tmp_path / "volume", volume=known).id == known
    DirectoryVolume(tmp_path / "other").close()
    (tmp_path / "mount").mkdir()
    for name in ("other", "mount", "none"):
        with pytest.raises(StoreUnavailableError, match="mount it"):
            DirectoryVolume(tmp_path / name, volume=known)
    assert (list((tmp_path / "mount").iterdir()), (tmp_path / "none").exists()) == ([], False)
    (tmp_path / "volume" / "volume.id").unlink()
    assert not volume.answers()
    with pytest.raises(StoreUnavailableError, match="nothing was changed"):
        DirectoryVolume(tmp_path / "volume")


def test_a_volume_that_went_away_has_not_lost_its_replicas_and_fences_no_writer(tmp_path: Path) -> None:
    mount = tmp_path / "mount"
    with _written(mount) as volume:
        mount.rename(tmp_path / "away")
        mount.mkdir()
        for call in (
            lambda: volume.flush(B, S1),
            lambda: volume.stat(B),
            lambda: volume.fence(B, S2, S1),
            lambda: volume.delete(B, S2),
            lambda: volume.create(OTHER, S1),
            lambda: volume.replicas(None, 9),
        ):
            with pytest.raises(StoreUnavailableError, match="mount it"):
                call()
        assert list(mount.iterdir()) == []


def test_two_processes_that_make_one_volume_at_once_have_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[DirectoryVolume] = []

    def listed(folder: str) -> list[str]:
        monkeypatch.undo()
        made.append(DirectoryVolume(tmp_path))
        return block_logs.names_in(folder)

    monkeypatch.setattr(volume_folder, "names_in", listed)
    assert DirectoryVolume(tmp_path).id == made[0].id


def test_a_volume_is_closed_between_two_calls_not_in_one(tmp_path: Path) -> None:
    disk = SteppingDisk()
    with _written(tmp_path, disk) as volume, ThreadPoolExecutor() as threads:
        closing: list[Future[None]] = []

        def close(_: int) -> None:
            disk.before = lambda _: None
            closing.append(threads.submit(volume.close))
            with pytest.raises(TimeoutError):
                closing[0].result(0.1)

        disk.before = close
        assert volume.append(B, S1, 3, b"d") == 4
        closing[0].result()


def test_a_name_that_a_client_of_nfs_remembers_is_no_proof_of_the_pen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux trusts names in a folder for up to a minute, and asks for them if the folder was opened."""
    with _written(tmp_path) as volume, DirectoryVolume(tmp_path) as other:
        volume.append(B, S1, 3, b"late")
        other.fence(B, S2, S1)
        log, is_remembered, open_file = _log(tmp_path), True, os.open

        def open_by_name(path: str, *arguments: int) -> int:
            nonlocal is_remembered
            is_remembered = is_remembered and Path(path) != log.parent
            fenced = _log(tmp_path, suffix="fenced")
            return open_file(fenced if is_remembered and Path(path) == log else path, *arguments)

        monkeypatch.setattr(os, "open", open_by_name)
        with pytest.raises(FencedError):
            volume.flush(B, S1)


@pytest.mark.parametrize("name", ["owner.lock", f"{7:020d}.head"])
def test_a_directory_of_an_older_program_is_refused_as_it_is(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(ConflictError, match="older Lockgate"):
        DirectoryVolume(tmp_path)
    assert os.listdir(tmp_path) == [name]  # noqa: PTH208


def test_what_is_made_has_the_permissions_of_the_volumes_directory(tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir()
    (tmp_path / "volume").chmod(0o2770)
    with _written(tmp_path / "volume") as volume:
        volume.claim("journal")
        volume.fence(B, S2, S1)
        volume.quarantine(B, S2)
        volume.create(OTHER, S1)
    for path in (tmp_path / "volume").rglob("*"):
        assert oct(path.stat().st_mode & 0o7777) == oct(0o2770 if path.is_dir() else 0o660), path


def test_a_late_write_is_not_read_at_its_stamp_after_a_fence_that_was_not_committed(tmp_path: Path) -> None:
    volume = _written(tmp_path)
    with DirectoryVolume(tmp_path) as other:
        other.fence(B, S2, S1)
        _fence_and_append(S3, b"XY")(other)
        volume.append(B, S1, 3, b"late")
        for one in (volume, other, DirectoryVolume(tmp_path)):
            assert one.read(B, S1, 0, 100) == b"abc"


@pytest.mark.parametrize("is_sealed", [False, True])
def test_a_late_write_is_not_shown_before_the_fence_has_made_its_log(tmp_path: Path, is_sealed: bool) -> None:
    with _written(tmp_path) as volume, DirectoryVolume(tmp_path) as other:
        record = BlockRecord(B, S1, (other.id,), 3, WRITING)
        follow = partial(Reader, lambda: (record,), {other.id: other}, clock=ManualClock())
        _log(tmp_path).rename(_log(tmp_path, suffix="fenced"))
        assert follow().read() == b"abc"
        volume.append(B, S1, 3, b"late")
        if is_sealed:
            with pytest.raises(FencedError):
                volume.finish(B, S1, 7, SEALED)
        with pytest.raises(StoreUnavailableError, match="is being recovered"):
            follow()
        other.fence(B, S2, S1)
        assert follow().read() == b"abclate"


def test_a_read_has_nothing_that_was_cut_since_another_process_has_looked(tmp_path: Path) -> None:
    with _written(tmp_path) as volume, DirectoryVolume(tmp_path) as other:
        volume.fence(B, S2, S1)
        assert other.stat(B)
        volume.trim(B, S2, 1)
        _flush(volume, S2, 1, b"XY")
        volume.finish(B, S2, 3, SEALED)
        assert other.read(B, S2, 0, 3) == b"aXY"


def test_a_crash_leaves_no_folder_that_other_users_cannot_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = _written(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "chmod", Mock(side_effect=Crash))
        with pytest.raises(Crash):
            volume.create(OTHER, S1)
    assert [path.name for path in (tmp_path / "blocks").iterdir() if path.suffix != ".new"] == [f"{B:020d}"]
    assert volume.create(OTHER, S1).block == OTHER
    assert [replica.block for replica in volume.replicas(None, 9)] == [B, OTHER]


@pytest.mark.parametrize("answer", [errno.ENOTSUP, errno.EPERM, errno.ENOSYS, errno.EMLINK])
@pytest.mark.parametrize("has_renameat2", [True, False])
def test_a_disk_without_hard_links_is_written_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: int, has_renameat2: bool
) -> None:
    def link(*_: object) -> None:
        raise OSError(answer, "on purpose")

    monkeypatch.setattr(Path, "hardlink_to", link)
    if not has_renameat2:
        monkeypatch.setattr(disk_calls, "_renameat2", None)
    with _written(tmp_path) as volume:
        _fence_and_append(S2, b"XY")(volume)
    assert _whole(tmp_path)[1] == b"abcXY"
    (tmp_path / "other").touch()
    with pytest.raises(FileExistsError):
        Disk().link(tmp_path / "other", tmp_path / "volume.id")
    assert (tmp_path / "volume.id").read_text()


def test_a_link_that_is_asked_for_twice_stands(tmp_path: Path) -> None:
    (tmp_path / "one").touch()
    for _ in range(2):
        Disk().link(tmp_path / "one", tmp_path / "two")
    (tmp_path / "three").touch()
    with pytest.raises(FileExistsError):
        Disk().link(tmp_path / "three", tmp_path / "two")
