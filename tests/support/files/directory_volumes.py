"""A volume in a directory with one replica, and a disk that a test steps through."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lockgate.storage_core.files.volumes.directory.directory_volume import DirectoryVolume
from lockgate.storage_core.files.volumes.disk import Disk
from lockgate.storage_core.files.volumes.replica import BlockId, Replica, ReplicaState
from lockgate.storage_core.stamp import Stamp
from tests.support.commit.destination import Crash

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


def flush(volume: DirectoryVolume, stamp: Stamp, offset: int, data: bytes) -> None:
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


def fence_and_append(stamp: Stamp, data: bytes, committed: Stamp = S1) -> Callable[[DirectoryVolume], object]:
    def call(volume: DirectoryVolume) -> None:
        flush(volume, stamp, volume.fence(B, stamp, committed).length_bytes, data)

    return call
