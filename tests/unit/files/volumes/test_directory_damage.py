"""Each byte of a replica's log flipped, the log cut or zeroed at each byte, and removed.

A read returns the right bytes or an error. Nothing is shorter than what was acknowledged, unless the volume
says that it is damaged.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from lockgate.storage_core.errors import MalformedRecordError, RecordVersionError, StaleReplicaError
from lockgate.storage_core.files.volumes.directory.directory_volume import DirectoryVolume
from lockgate.storage_core.files.volumes.disk import Disk
from lockgate.storage_core.stamp import Stamp
from tests.support.files.directory_volumes import S1, S2, S3, S9, SEALED, WRITING, B, flush


class Quick(Disk):
    """A disk whose syncs do not wait."""

    def sync(self, file: int) -> None:
        pass

    sync_data = sync


def _append(volume: DirectoryVolume, stamp: Stamp, *pieces: bytes) -> None:
    for piece in pieces:
        flush(volume, stamp, volume.stat(B).length_bytes, piece)  # type: ignore[union-attr]


def _open(volume: DirectoryVolume) -> bytes:
    volume.create(B, S1)
    _append(volume, S1, b"abcdef", b"gh", b"i")
    return b"abcdefghi"


def _sealed(volume: DirectoryVolume) -> bytes:
    whole = _open(volume)
    volume.finish(B, S1, 9, SEALED)
    return whole


def _continued(volume: DirectoryVolume) -> bytes:
    _sealed(volume)
    volume.fence(B, S2, S1)
    volume.trim(B, S2, 7)
    _append(volume, S2, b"XY", b"Z")
    volume.fence(B, S3, S2)
    volume.trim(B, S3, 9)
    volume.finish(B, S3, 9, WRITING)
    _append(volume, S3, b"123", b"4")
    return b"abcdefgXY1234"


def _continued_and_sealed(volume: DirectoryVolume) -> bytes:
    whole = _continued(volume)
    volume.finish(B, S3, len(whole), SEALED)
    return whole


def _damages(data: bytes, is_sampled: bool) -> Iterator[bytes]:
    """Yield damaged logs. Of the zeros between the parts of a log, each hundredth is changed."""
    places = [at for at in range(len(data)) if any(data[max(at - 4, 0) : at + 5]) or at % 100 == 0]
    for number, at in enumerate(places):
        damages = (
            data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :],
            data[:at],
            data[:at] + bytes(len(data) - at),
            data[:at] + bytes(512) + data[at + 512 :],
        )
        if not is_sampled:
            yield from damages
        elif number % 3 == 0:
            yield damages[number % 4]


def _check(folder: Path, whole: bytes, stamp: Stamp) -> None:
    volume = DirectoryVolume(folder, disk=Quick())
    try:
        replica = volume.stat(B)
    except RecordVersionError:
        return
    if replica is None or replica.stamp != stamp:
        with pytest.raises(StaleReplicaError):
            volume.read(B, stamp, 0, 1)
        return
    assert replica.damage or replica.length_bytes == len(whole)
    for size in (1, 3, 7, 8, replica.length_bytes, len(whole), 100):
        with suppress(MalformedRecordError):
            assert volume.read(B, stamp, 0, size) == whole[:size]
    [listed] = volume.replicas(None, 9)
    assert listed.damage or listed.length_bytes == len(whole)
    fenced = volume.fence(B, S9, stamp)
    assert fenced.damage or fenced.length_bytes == len(whole)
    assert fenced.acknowledged_bytes == replica.acknowledged_bytes, "a shorter member must not be chosen"
    length = fenced.length_bytes
    assert volume.read(B, S9, 0, length) == whole[:length]
    if fenced.damage:
        with pytest.raises(MalformedRecordError):
            volume.read(B, S9, 0, length + 1)
        assert DirectoryVolume(folder).stat(B) == fenced, "it stays damaged"
        volume.trim(B, S9, length // 2)
        volume.append(B, S9, length // 2, whole[length // 2 :])
        assert volume.finish(B, S9, len(whole), SEALED).damage == ""
        found = DirectoryVolume(folder).stat(B)
        assert found is not None
        assert (found.damage, found.length_bytes) == ("", len(whole))
        assert volume.read(B, S9, 0, 100) == whole


@pytest.mark.parametrize("is_sampled", [True, pytest.param(False, marks=pytest.mark.soak)])
@pytest.mark.parametrize("life", [_open, _sealed, _continued, _continued_and_sealed])
def test_no_damage_is_served_or_taken_for_the_end(
    life: Callable[[DirectoryVolume], bytes], is_sampled: bool, tmp_path: Path
) -> None:
    with DirectoryVolume(tmp_path / "whole", disk=Quick()) as volume:
        whole = life(volume)
        newest = volume.stat(B)
        assert newest is not None
        assert volume.read(B, newest.stamp, 0, 100) == whole
    root = tmp_path / "damaged"
    [log] = (tmp_path / "whole" / "blocks" / f"{B:020d}").iterdir()
    path = root / log.relative_to(tmp_path / "whole")
    for number, damaged in enumerate((None, *_damages(log.read_bytes(), is_sampled))):
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(tmp_path / "whole", root, copy_function=os.link)
        path.unlink()
        if damaged is not None:
            path.write_bytes(damaged)
        try:
            _check(root, whole, newest.stamp)
        except BaseException as error:
            error.add_note(f"damage {number}")
            raise


def test_recoveries_that_fail_keep_the_log_of_a_damaged_replica_and_one_copy(tmp_path: Path) -> None:
    """While another member is away, each recovery fails, and fences the replica at a newer stamp."""
    with DirectoryVolume(tmp_path, disk=Quick()) as volume:
        whole = _open(volume)
    folder = tmp_path / "blocks" / f"{B:020d}"
    [log] = folder.iterdir()
    data = log.read_bytes()
    at = data.rindex(b"gh")
    log.write_bytes(data[:at] + b"GH" + data[at + 2 :])
    for number in range(2, 6):
        with DirectoryVolume(tmp_path, disk=Quick()) as volume:
            fenced = volume.fence(B, Stamp(1, number), S1)
            assert (bool(fenced.damage), fenced.length_bytes, fenced.acknowledged_bytes) == (True, 6, 9)
            assert volume.read(B, S1, 0, 6) == whole[:6]
        assert sorted(one.suffix for one in folder.iterdir()) == [".fenced", ".log"]
    with DirectoryVolume(tmp_path, disk=Quick()) as volume:
        volume.fence(B, S9, S1)
        volume.append(B, S9, 6, b"ghi")
        volume.finish(B, S9, 9, WRITING)
        assert volume.fence(B, Stamp(1, 10), S9).damage == ""
        assert volume.read(B, S9, 0, 9) == whole
    assert len(list(folder.iterdir())) == 1
