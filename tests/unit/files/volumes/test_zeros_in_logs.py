"""Zeros behind small frames: written ahead in the log of a local volume, and never read as frames."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from lockgate.storage_core.errors import StoreUnavailableError
from lockgate.storage_core.files.volumes import replica_format
from lockgate.storage_core.files.volumes.disk import Disk
from lockgate.storage_core.files.volumes.local import LocalVolume
from lockgate.storage_core.files.volumes.replica import BlockId, Replica, ReplicaState
from lockgate.storage_core.files.volumes.replica_format import FRAME
from lockgate.storage_core.files.volumes.view import VolumeView
from lockgate.storage_core.stamp import Stamp

B = BlockId(7)
S1, S2 = Stamp(1, 1), Stamp(1, 2)
LOG = f"{7:020d}.log"


def _flush_each(volume: LocalVolume, pieces: Sequence[bytes]) -> None:
    """Append and flush pieces at the end of the block."""
    found = volume.stat(B)
    length = found.length_bytes if found else 0
    for piece in pieces:
        length = volume.append(B, S1, length, piece)
        assert volume.flush(B, S1) == length


def test_small_flushes_seldom_lengthen_the_log_and_a_sealed_one_has_no_zeros(tmp_path: Path) -> None:
    pieces, sizes = [b"%04d" % number * 250 for number in range(300)], set[int]()
    with LocalVolume(tmp_path) as volume:
        volume.create(B, S1)
        for piece in pieces:
            _flush_each(volume, [piece])
            sizes.add((tmp_path / LOG).stat().st_size)
        assert len(sizes) < 20
        assert max(sizes) < 300 * (1000 + FRAME.size) + 64 * 1024
        volume.finish(B, S1, 300_000, ReplicaState.SEALED)
        assert (tmp_path / LOG).stat().st_size == 300 * (1000 + FRAME.size)
        assert volume.read(B, S1, 0, 300_001) == b"".join(pieces)


def test_a_view_sees_a_flush_that_changes_neither_size_nor_time_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / LOG
    with LocalVolume(tmp_path) as volume:
        volume.create(B, S1)
        _flush_each(volume, [b"0123456789" * 20, b"abc"])
        view = VolumeView(tmp_path, volume.id)
        assert view.read(B, S1, 200, 9) == b"abc"
        before = log.stat()
        for length, piece in enumerate([b"d", b"e"], start=204):
            _flush_each(volume, [piece])
            os.utime(log, ns=(before.st_atime_ns, before.st_mtime_ns))
            assert log.stat().st_size == before.st_size
            found = view.stat(B)
            assert found is not None
            assert found.length_bytes == length
        assert view.read(B, S1, 200, 9) == b"abcde"


@pytest.mark.parametrize("intact", range(4 + FRAME.size))
def test_a_frame_that_a_crash_left_half_among_zeros_is_not_served(tmp_path: Path, intact: int) -> None:
    with LocalVolume(tmp_path) as volume:
        volume.create(B, S1)
        _flush_each(volume, [b"0123456789" * 20, b"abc"])
    log = (tmp_path / LOG).read_bytes()
    end = 203 + 2 * FRAME.size
    assert log[end:] == bytes(200 + FRAME.size)
    with LocalVolume(tmp_path) as volume:
        volume.fence(B, S2)
        volume.finish(B, S2, 203, ReplicaState.WRITING)
        volume.append(B, S2, 203, b"defg")
        volume.flush(B, S2)
    frame = (tmp_path / LOG).read_bytes()[end : end + 4 + FRAME.size]
    torn = frame[:intact] + bytes(100 + 4 + FRAME.size - intact)
    (tmp_path / LOG).write_bytes(log[:end] + torn)
    with LocalVolume(tmp_path) as volume:
        assert volume.stat(B) == Replica(B, S2, ReplicaState.SUSPECT, 203, 203)
        assert volume.fence(B, S2).length_bytes == 203
        volume.finish(B, S2, 203, ReplicaState.SEALED)
    assert (tmp_path / LOG).read_bytes() == log[:end] + (torn if any(torn) else b"")


def test_a_frame_is_taken_by_a_disk_without_room_for_zeros(tmp_path: Path) -> None:
    class FullDisk(Disk):
        def write(self, file: int, data: bytes, position: int) -> None:
            super().write(file, data[: 1000 - position], position)
            if position + len(data) > 1000:
                raise OSError(errno.ENOSPC, "on purpose")

    with LocalVolume(tmp_path, disk=FullDisk()) as volume:
        volume.create(B, S1)
        _flush_each(volume, [b"x" * 400, b"y" * 300, b"z" * (300 - 3 * FRAME.size)])
        assert (tmp_path / LOG).stat().st_size == 1000
        with pytest.raises(StoreUnavailableError):
            volume.append(B, S1, 1000 - 3 * FRAME.size, b"more")
        assert volume.trim(B, S1, 1000 - 3 * FRAME.size).length_bytes == 1000 - 3 * FRAME.size
    with LocalVolume(tmp_path) as volume:
        assert volume.fence(B, S2).length_bytes == 1000 - 3 * FRAME.size


def test_zeros_that_would_be_read_as_a_frame_are_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One block in 2^32 has the checksum 0 for a trim to 0."""
    checksum = replica_format._checksum
    monkeypatch.setattr(
        replica_format,
        "_checksum",
        lambda header, offset, data: checksum(header, offset, data) if offset or data else 0,
    )
    with LocalVolume(tmp_path) as volume:
        volume.create(B, S1)
        _flush_each(volume, [b"abc", b"def"])
    with LocalVolume(tmp_path) as volume:
        assert volume.stat(B) == Replica(B, S1, ReplicaState.SUSPECT, 6, 6)
