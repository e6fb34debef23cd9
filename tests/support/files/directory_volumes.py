"""A volume in a directory with one replica."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lockgate.storage_core.files.volumes.directory.directory_volume import DirectoryVolume
from lockgate.storage_core.files.volumes.disk import Disk
from lockgate.storage_core.files.volumes.protocol import Volume
from lockgate.storage_core.files.volumes.replica import BlockId, Replica, ReplicaState
from lockgate.storage_core.stamp import Stamp

B, OTHER = BlockId(7), BlockId(8)
S0, S1, S2, S3, S9 = (Stamp(1, number) for number in (0, 1, 2, 3, 9))
WRITING, SEALED = ReplicaState.WRITING, ReplicaState.SEALED


def flush(volume: Volume, stamp: Stamp, offset: int, data: bytes) -> None:
    volume.append(B, stamp, offset, data)
    volume.flush(B, stamp)
    volume.acknowledge(B, stamp, offset + len(data))


def written(folder: Path, disk: Disk | None = None) -> DirectoryVolume:
    volume = DirectoryVolume(folder, disk=disk)
    volume.create(B, S1)
    flush(volume, S1, 0, b"abc")
    return volume


def log_of(folder: Path, stamp: Stamp = S1, suffix: str = "log") -> Path:
    return folder / "blocks" / f"{B:020d}" / f"{stamp.epoch:018d}-{stamp.sequence:020d}.{suffix}"


def whole_replica(folder: Path, committed: Stamp = S0) -> tuple[Replica, bytes]:
    """Fence the replica in another process, and read it."""
    with DirectoryVolume(folder) as volume:
        fenced = volume.fence(B, S9, committed)
        assert fenced.damage == ""
        return fenced, volume.read(B, S9, 0, 100)


def fence_and_append(stamp: Stamp, data: bytes, committed: Stamp = S1) -> Callable[[Volume], object]:
    def call(volume: Volume) -> None:
        flush(volume, stamp, volume.fence(B, stamp, committed).length_bytes, data)

    return call
