"""A local volume after crashes, a full disk, failed syncs and damage."""

from __future__ import annotations

import errno
import itertools
import os
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import pytest

from lockgate.storage_core.errors import (
    ConflictError,
    FencedError,
    LockgateError,
    MalformedRecordError,
    NotAppliedError,
    RecordVersionError,
    StaleReplicaError,
    StoreUnavailableError,
)
from lockgate.storage_core.files.volumes import disk as disk_calls
from lockgate.storage_core.files.volumes import local_replica
from lockgate.storage_core.files.volumes.disk import Disk
from lockgate.storage_core.files.volumes.local import LocalVolume
from lockgate.storage_core.files.volumes.replica import BlockId, Replica, ReplicaState
from lockgate.storage_core.files.volumes.view import VolumeView
from lockgate.storage_core.stamp import Stamp
from tests.support.commit.destination import Crash
from tests.support.files.older_replicas import make_older, older_head

B, OTHER = BlockId(7), BlockId(8)
S1, S2 = Stamp(1, 1), Stamp(1, 2)
HEAD, LOG = f"{7:020d}.head", f"{7:020d}.log"
CALLS = ("write", "truncate", "sync", "replace", "unlink")


class FaultyDisk(Disk):
    """A disk that dies before the n-th call, in the middle of it if it is a write, or fails one call."""

    def __init__(self, dies_at: int = 0) -> None:
        self.calls = 0
        self.dies_at = dies_at
        self.fails: dict[str, int] = {}

    def __getattribute__(self, name: str) -> object:
        found = super().__getattribute__(name)
        if name not in CALLS:
            return found

        def call(*arguments: object) -> None:
            self.calls += 1
            if self.calls == self.dies_at:
                if name == "write":
                    file, data, position = arguments
                    found(file, data[: len(data) // 2], position)  # type: ignore[operator, index]
                raise Crash
            if name in self.fails:
                raise OSError(self.fails[name], "on purpose")
            found(*arguments)  # type: ignore[operator]

        return call


def _life(folder: Path, disk: Disk, flushed: list[bytes], fences: list[Stamp]) -> None:
    """Write, flush, fence, trim and write again; note what was acknowledged."""
    with LocalVolume(folder, disk=disk) as volume:
        volume.create(B, S1)
        fences.append(S1)
        volume.append(B, S1, 0, b"abc")
        volume.append(B, S1, 3, b"def")
        volume.flush(B, S1)
        flushed.append(b"abcdef")
        volume.fence(B, S2)
        fences.append(S2)
        flushed[-1] = b"abcd"  # the trim may or may not be applied from here on
        volume.trim(B, S2, 4)
        volume.finish(B, S2, 4, ReplicaState.WRITING)
        volume.append(B, S2, 4, b"XY")
        volume.flush(B, S2)
        flushed.append(b"abcdXY")
        volume.finish(B, S2, 6, ReplicaState.SEALED)


def test_a_crash_at_every_call_to_the_disk_loses_no_flushed_byte_and_no_fence(tmp_path: Path) -> None:
    whole = FaultyDisk()
    _life(tmp_path / "whole", whole, [], [])
    assert whole.calls > 20
    for dies_at in range(1, whole.calls + 1):
        folder, flushed, fences = tmp_path / str(dies_at), [b""], [Stamp()]
        with pytest.raises(Crash):
            _life(folder, FaultyDisk(dies_at), flushed, fences)
        with LocalVolume(folder) as volume:
            found = volume.stat(B)
            assert found is not None or fences == [Stamp()]
            if found is not None:
                assert found.stamp >= fences[-1]
                assert found.state in {ReplicaState.SUSPECT, ReplicaState.SEALED}
                assert found.durable_bytes == found.length_bytes
                assert volume.read(B, found.stamp, 0, 100).startswith(flushed[-1])
                volume.fence(B, S2)
                volume.finish(B, S2, found.length_bytes, ReplicaState.WRITING)
                volume.append(B, S2, found.length_bytes, b"on")
                volume.flush(B, S2)
                assert volume.read(B, S2, found.length_bytes, 9) == b"on"


def _written(folder: Path, disk: Disk | None = None) -> LocalVolume:
    volume = LocalVolume(folder, disk=disk)
    volume.create(B, S1)
    volume.append(B, S1, 0, b"abc")
    volume.flush(B, S1)
    return volume


def test_a_fence_that_is_interrupted_after_it_is_durable_holds(tmp_path: Path) -> None:
    class Interrupted(Disk):
        is_armed = False

        def replace(self, source: Path, path: Path) -> None:
            super().replace(source, path)
            if self.is_armed:
                self.is_armed = False
                raise KeyboardInterrupt

    disk = Interrupted()
    with _written(tmp_path, disk) as volume:
        disk.is_armed = True
        with pytest.raises(KeyboardInterrupt):
            volume.fence(B, S2)
        with pytest.raises(FencedError):
            volume.append(B, S1, 3, b"def")


def test_the_system_begins_to_write_a_large_append_before_its_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Mock()
    monkeypatch.setattr(disk_calls, "_sync_file_range", begin)
    with _written(tmp_path) as volume:
        begin.assert_not_called()
        size = (tmp_path / LOG).stat().st_size
        volume.append(B, S1, 3, bytes(64 * 1024))
        [(_, position, length, _)] = [call.args for call in begin.call_args_list]
        assert (position.value, position.value + length.value) == (size, (tmp_path / LOG).stat().st_size)
        assert volume.stat(B) == Replica(B, S1, ReplicaState.WRITING, 3 + 64 * 1024, 3)


def test_a_system_without_that_call_writes_large_appends_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_calls, "_sync_file_range", None)
    with _written(tmp_path) as volume:
        volume.append(B, S1, 3, bytes(64 * 1024))
        assert volume.flush(B, S1) == 3 + 64 * 1024


def test_a_full_disk_refuses_an_append_and_keeps_what_is_flushed(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with _written(tmp_path, disk) as volume:
        disk.fails = {"write": errno.ENOSPC}
        with pytest.raises(StoreUnavailableError, match="full"):
            volume.append(B, S1, 3, b"def")
        disk.fails = {}
        volume.append(B, S1, 3, b"xyz")
        volume.flush(B, S1)
        assert volume.read(B, S1, 0, 9) == b"abcxyz"


def test_a_failed_sync_is_not_repeated_and_its_bytes_do_not_come_back(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with _written(tmp_path, disk) as volume:
        volume.append(B, S1, 3, b"def")
        sync, disk.sync = disk.sync, _FailsOnce(disk.sync)  # type: ignore[method-assign]
        with pytest.raises(LockgateError):
            volume.flush(B, S1)
        assert sync is not None
        for call in (lambda: volume.flush(B, S1), lambda: volume.append(B, S1, 3, b"def")):
            with pytest.raises(ConflictError):
                call()
        assert volume.read(B, S1, 0, 9) == b"abc"
    for _ in range(2):
        with LocalVolume(tmp_path) as volume:
            assert volume.read(B, S1, 0, 9) == b"abc"
            volume.finish(B, S1, 3, ReplicaState.WRITING)


class _FailsOnce:
    def __init__(self, sync: object) -> None:
        self.sync, self.failed = sync, False

    def __call__(self, file: int) -> None:
        if not self.failed:
            self.failed = True
            raise OSError(errno.EIO, "on purpose")
        self.sync(file)  # type: ignore[operator]


def test_a_bit_flip_is_never_served(tmp_path: Path) -> None:
    with _written(tmp_path) as volume:
        volume.finish(B, S1, 3, ReplicaState.SEALED)
    whole = (tmp_path / LOG).read_bytes()
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        (tmp_path / LOG).write_bytes(damaged)
        with LocalVolume(tmp_path) as volume:
            found = volume.stat(B)
            assert found is not None
            assert (found.state, found.length_bytes) == (ReplicaState.SUSPECT, 0)


def test_a_damaged_header_is_refused(tmp_path: Path) -> None:
    _written(tmp_path).close()
    whole = (tmp_path / HEAD).read_bytes()
    for at in range(len(whole)):
        (tmp_path / HEAD).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with LocalVolume(tmp_path) as volume, pytest.raises(LockgateError):
            volume.stat(B)


def test_version_0_has_the_stamp_0_0_and_is_upgraded_in_place(tmp_path: Path) -> None:
    with _written(tmp_path) as volume:
        volume.finish(B, S1, 3, ReplicaState.SEALED)
    make_older(tmp_path, 7)
    (tmp_path / HEAD).write_bytes(older_head(0, struct.pack(">QBQ", 7, 1, 3)))
    with LocalVolume(tmp_path) as volume:
        assert volume.read(B, Stamp(), 0, 9) == b"abc"
    assert (tmp_path / HEAD).read_bytes() == older_head(1, struct.pack(">QQQBQ", 7, 0, 0, 1, 3))


def test_a_version_from_the_future_is_refused_and_unchanged(tmp_path: Path) -> None:
    _written(tmp_path).close()
    future = older_head(9, b"?")
    (tmp_path / HEAD).write_bytes(future)
    with LocalVolume(tmp_path) as volume, pytest.raises(RecordVersionError, match="version 9"):
        volume.stat(B)
    assert (tmp_path / HEAD).read_bytes() == future


def test_after_a_restart_replicas_are_listed_as_they_are_loaded(tmp_path: Path) -> None:
    with _written(tmp_path) as volume:
        for block in (BlockId(8), BlockId(9), BlockId(10)):
            volume.create(block, S1)
            volume.append(block, S1, 0, b"abc")
            volume.finish(block, S1, 3, ReplicaState.SEALED)
    (tmp_path / f"{9:020d}.head").write_bytes(b"damaged")
    (tmp_path / f"{10:020d}.log").unlink()
    lost = (ReplicaState.SUSPECT, Stamp(), 0)
    with LocalVolume(tmp_path) as volume:
        found = {one.block: (one.state, one.stamp, one.length_bytes) for one in volume.replicas(None, 9)}
        assert found == {
            7: (ReplicaState.SUSPECT, S1, 3),
            8: (ReplicaState.SEALED, S1, 3),
            9: lost,
            10: lost,
        }
        view = VolumeView(tmp_path, volume.id)
        assert view.replicas(None, 9)[1:] == volume.replicas(None, 9)[1:]
        assert view.replicas(BlockId(7), 1) == (volume.stat(BlockId(8)),)
        assert view.usage().used_bytes == volume.usage().used_bytes


def test_replicas_of_a_newer_program_are_not_listed_as_damaged(tmp_path: Path) -> None:
    _written(tmp_path).close()
    (tmp_path / HEAD).write_bytes(older_head(9, b"?"))
    with LocalVolume(tmp_path) as volume, pytest.raises(RecordVersionError, match="version 9"):
        volume.replicas(None, 1)


def test_a_volume_belongs_to_one_process_and_keeps_its_id(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib\nfrom lockgate.storage_core.files.volumes.local import LocalVolume\n"
        "LocalVolume(pathlib.Path(sys.argv[1]))"
    )
    with LocalVolume(tmp_path) as volume:
        identity = volume.id
        second = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
        )
        assert second.returncode != 0
        assert f"pid {os.getpid()}" in second.stderr
    with LocalVolume(tmp_path) as volume:
        assert volume.id == identity


def _set_aside(folder: Path, disk: Disk | None = None) -> None:
    with LocalVolume(folder, disk=disk) as volume:
        assert volume.quarantine(B, S1)


def test_a_replica_that_is_set_aside_is_neither_listed_nor_served_and_kept(tmp_path: Path) -> None:
    _written(tmp_path).close()
    for _ in range(2):
        with LocalVolume(tmp_path) as volume:
            volume.create(B, S1)
            used = volume.usage().used_bytes
            assert volume.quarantine(B, S1)
            assert not volume.quarantine(B, S1)
            assert volume.stat(B) is None
            assert volume.replicas(None, 9) == ()
            assert volume.quarantined(None, 9) == VolumeView(tmp_path, volume.id).quarantined(None, 9) == (B,)
            assert volume.quarantined(B, 9) == ()
            assert volume.usage().used_bytes == used
    assert (tmp_path / "quarantine" / f"{7:020d}.0.log").read_bytes().endswith(b"abc")
    with LocalVolume(tmp_path) as volume:
        assert volume.discard(B)
        assert not volume.discard(B)
        assert volume.quarantined(None, 9) == ()
        assert list((tmp_path / "quarantine").iterdir()) == []


def test_a_newer_replica_is_not_set_aside_and_one_without_a_header_is(tmp_path: Path) -> None:
    with _written(tmp_path) as volume:
        volume.fence(B, S2)
        assert not volume.quarantine(B, S1)
    (tmp_path / HEAD).write_bytes(b"damaged")
    _set_aside(tmp_path)
    (tmp_path / HEAD).write_bytes(struct.pack(">4sI", b"LGRP", 9))
    with LocalVolume(tmp_path) as volume, pytest.raises(RecordVersionError):
        volume.quarantine(B, S1)


def test_a_crash_at_each_call_keeps_the_bytes_that_are_set_aside(tmp_path: Path) -> None:
    whole = FaultyDisk()
    _written(tmp_path / "whole").close()
    _set_aside(tmp_path / "whole", whole)
    for dies_at in range(1, whole.calls + 1):
        folder = tmp_path / str(dies_at)
        _written(folder).close()
        with pytest.raises(Crash):
            _set_aside(folder, FaultyDisk(dies_at))
        with LocalVolume(folder) as volume:
            volume.quarantine(B, S1)
            assert volume.quarantined(None, 9) == (B,)
            assert volume.stat(B) is None
        assert (folder / "quarantine" / f"{7:020d}.0.log").read_bytes().endswith(b"abc")


def test_a_crash_at_each_call_of_a_deletion_leaves_no_bytes_that_nobody_deletes(tmp_path: Path) -> None:
    for dies_at in itertools.count(1):
        folder = tmp_path / str(dies_at)
        _written(folder).close()
        disk = FaultyDisk(dies_at)
        with LocalVolume(folder, disk=disk) as volume:
            try:
                volume.delete(B, S1)
            except Crash:
                pass
            else:
                break
        with LocalVolume(folder) as volume:
            is_left = volume.stat(B) is not None
            assert volume.delete(B, S1) is is_left
            assert volume.stat(B) is None
        assert sum(path.stat().st_size for path in folder.glob("*.log")) == 0
    assert dies_at > 3


@pytest.mark.parametrize("suffix", [".head", ".log"])
def test_a_replica_that_someone_removed_is_not_listed_any_more(tmp_path: Path, suffix: str) -> None:
    with _written(tmp_path) as volume:
        volume.finish(B, S1, 3, ReplicaState.SEALED)
        assert len(volume.replicas(None, 9)) == 1
        (tmp_path / HEAD).with_suffix(suffix).unlink()
        assert [one.length_bytes for one in volume.replicas(None, 9) if one.stamp == S1] == []
        with pytest.raises(NotAppliedError):
            volume.read(B, S1, 0, 3)


@pytest.mark.parametrize("suffix", [".head", ".log"])
def test_the_files_of_another_block_are_never_served(tmp_path: Path, suffix: str) -> None:
    with _written(tmp_path) as volume:
        volume.finish(B, S1, 3, ReplicaState.SEALED)
        volume.create(OTHER, S1)
        volume.append(OTHER, S1, 0, b"xyz")
        volume.finish(OTHER, S1, 3, ReplicaState.SEALED)
    for one in (B, OTHER):
        (tmp_path / f"{one:020d}{suffix}").rename(tmp_path / f"{one}")
    for one, name in ((B, OTHER), (OTHER, B)):
        (tmp_path / f"{one}").rename(tmp_path / f"{name:020d}{suffix}")
    with LocalVolume(tmp_path) as volume:
        for one in (B, OTHER):
            for there in (volume, VolumeView(tmp_path, volume.id)):
                found = b""
                with suppress(NotAppliedError, StaleReplicaError):
                    found = there.read(one, S1, 0, 3)
                assert found == b"", "it is shorter than the journal says, which a reader notices"


def test_large_frames_are_read_from_any_byte_and_checked(tmp_path: Path) -> None:
    large = bytes(range(256)) * 256  # its bytes are read apart from its head
    data = large + b"small" + large
    with LocalVolume(tmp_path) as volume:
        volume.create(B, S1)
        for piece in (large, b"small", large):
            volume.append(B, S1, volume.stat(B).length_bytes, piece)  # type: ignore[union-attr]
        volume.flush(B, S1)
        for begin, size in itertools.product(
            (0, 1, 65_535, 65_536, 65_540, 65_541, len(data)), (1, 6, 70_000)
        ):
            assert volume.read(B, S1, begin, size) == data[begin : begin + size]
        volume.fence(B, S2)
        volume.trim(B, S2, 65_000)
        assert volume.read(B, S2, 0, len(data)) == data[:65_000]
        whole = (tmp_path / LOG).read_bytes()
        for at in (0, 9, 13, 16, 65_551):  # offset, size, checksum and bytes of the first frame
            (tmp_path / LOG).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            with pytest.raises(MalformedRecordError, match="checksum"):
                volume.read(B, S2, 0, 10)


def _open_logs(folder: Path) -> int:
    """Return how many logs below a folder this process has open."""
    links = (Path("/proc/self/fd") / number for number in os.listdir("/proc/self/fd"))  # noqa: PTH208
    named = [os.readlink(link) for link in links if link.is_symlink()]  # noqa: PTH115
    return sum(name.startswith(str(folder)) and ".log" in name for name in named)


def test_logs_stay_open_while_they_are_written_and_never_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_replica, "_KEPT_OPEN", len(local_replica._open_logs) + 2)
    blocks = [BlockId(number) for number in range(1, 5)]
    with LocalVolume(tmp_path) as volume:
        for block in blocks:
            volume.create(block, S1)
            for at in (0, 1):
                volume.append(block, S1, at, b"x")
                volume.flush(block, S1)
        assert _open_logs(tmp_path) == 2
        volume.finish(blocks[0], S1, 2, ReplicaState.SEALED)
        assert _open_logs(tmp_path) == 1
        volume.append(blocks[2], S1, 2, b"y")
        assert _open_logs(tmp_path) == 2
        volume.delete(blocks[1], S1)
        volume.quarantine(blocks[2], S1)
        assert _open_logs(tmp_path) == 0
        volume.append(blocks[3], S1, 2, b"z")
        volume.flush(blocks[3], S1)
        assert (_open_logs(tmp_path), volume.read(blocks[3], S1, 0, 9)) == (1, b"xxz")
    assert _open_logs(tmp_path) == 0
