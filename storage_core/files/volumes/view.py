"""Replicas of a volume that this process does not own, as it reads them from the directory.

It shows bytes that an owner has written, also the last ones that are not synced yet: they are in the
system's cache, so a crash of the owner keeps them, and a crash of the machine may not.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lockgate.storage_core.errors import StaleReplicaError
from lockgate.storage_core.files.volumes.block_list import RecentReplicas, blocks_in, listed, page, usage_of
from lockgate.storage_core.files.volumes.disk import Disk
from lockgate.storage_core.files.volumes.local_replica import LocalReplica
from lockgate.storage_core.files.volumes.protocol import NotOwnerError, Usage, Volume, VolumeId
from lockgate.storage_core.files.volumes.quarantine import Quarantine
from lockgate.storage_core.files.volumes.replica import BlockId, Replica, ReplicaState
from lockgate.storage_core.stamp import Stamp
from lockgate.storage_core.stores.os_errors import translated

_Version = tuple[int, int, int, int]


def _version_of(path: Path) -> _Version | None:
    """Return what a change of a replica's header or log changes, but maybe not a frame in place of zeros.

    The times of two writes can be the same: older kernels count them in milliseconds.
    """
    try:
        head, log = path.with_suffix(".head").stat(), path.with_suffix(".log").stat()
    except FileNotFoundError:
        return None
    return head.st_ino, head.st_mtime_ns, log.st_size, log.st_mtime_ns


class VolumeView:
    """A `Volume` that is read from its directory; the calls that change it are its owner's.

    Args:
        folder: Its directory.
        volume: Its id.
        own: Takes the volume for this process and returns it; by default the volume can only be read.
    """

    def __init__(self, folder: Path, volume: VolumeId, own: Callable[[], Volume] | None = None) -> None:
        self._folder = folder
        self.id = volume
        self._own = own or self._refuse
        self._disk = Disk()
        self._seen: dict[BlockId, tuple[_Version, LocalReplica]] = {}
        self._recent = RecentReplicas()

    def read(self, block: BlockId, stamp: Stamp, offset: int, size: int) -> bytes:
        """Return bytes whose checksums hold; fewer than `size` only at their end."""
        with translated("read", str(self._folder), changes=False):
            found = self._load(block)
            if found is None or found.header.stamp != stamp or found.header.state is ReplicaState.STALE:
                raise StaleReplicaError(f"block {block}: volume {self.id} has no replica at stamp {stamp}")
            return found.read(offset, size)

    def stat(self, block: BlockId) -> Replica | None:
        """Return a replica, or None if there is none."""
        with translated("stat", str(self._folder), changes=False):
            found = self._load(block)
            return found.view() if found else None

    def replicas(self, after: BlockId | None, limit: int) -> tuple[Replica, ...]:
        """Return the next replicas in the order of their blocks."""
        found: list[Replica] = []
        with translated("replicas", str(self._folder), changes=False):
            blocks = blocks_in(self._folder)
            while len(found) < limit or limit < 1:
                named = page(blocks, after, limit - len(found))
                if not named:
                    break
                after = named[-1]
                looked = (listed(block, self._folder / f"{block:020d}", self.stat) for block in named)
                found += (one for one in looked if one is not None)
        return tuple(found)

    def usage(self) -> Usage:
        """Return the used and the free space."""
        with translated("usage", str(self._folder), changes=False):
            return usage_of(self._folder)

    def create(self, block: BlockId, stamp: Stamp) -> Replica:
        """Take the volume, and create an empty replica."""
        return self._own().create(block, stamp)

    def append(self, block: BlockId, stamp: Stamp, offset: int, data: bytes) -> int:
        """Take the volume, and append bytes."""
        return self._own().append(block, stamp, offset, data)

    def flush(self, block: BlockId, stamp: Stamp) -> int:
        """Take the volume, and make all received bytes durable."""
        return self._own().flush(block, stamp)

    def fence(self, block: BlockId, stamp: Stamp) -> Replica:
        """Take the volume, and refuse older stamps."""
        return self._own().fence(block, stamp)

    def trim(self, block: BlockId, stamp: Stamp, length_bytes: int) -> Replica:
        """Take the volume, and cut a replica."""
        return self._own().trim(block, stamp, length_bytes)

    def finish(self, block: BlockId, stamp: Stamp, length_bytes: int, state: ReplicaState) -> Replica:
        """Take the volume, and seal a replica or open it to appends."""
        return self._own().finish(block, stamp, length_bytes, state)

    def delete(self, block: BlockId, stamp: Stamp) -> bool:
        """Take the volume, and delete a replica."""
        return self._own().delete(block, stamp)

    def quarantine(self, block: BlockId, stamp: Stamp) -> bool:
        """Take the volume, and set a replica aside."""
        return self._own().quarantine(block, stamp)

    def quarantined(self, after: BlockId | None, limit: int) -> tuple[BlockId, ...]:
        """Return the blocks of the next replicas that are set aside."""
        with translated("quarantined", str(self._folder), changes=False):
            return tuple(Quarantine(self._folder, self._disk).blocks(after, limit))

    def discard(self, block: BlockId) -> bool:
        """Take the volume, and delete a replica that is set aside."""
        return self._own().discard(block)

    def exists(self) -> bool:
        """Return whether the volume is in its directory."""
        return (self._folder / "volume.id").exists()

    def _load(self, block: BlockId) -> LocalReplica | None:
        path = self._folder / f"{block:020d}"
        version = _version_of(path)
        before = self._seen.get(block)
        if version is not None and before is not None and before[0] == version and not before[1].has_more():
            self._recent.use(before[1], self._forget)
            return before[1]
        found = LocalReplica.look(path, self._disk)
        if version is not None and found is not None:
            self._seen[block] = version, found
            self._recent.use(found, self._forget)
        return found

    def _forget(self, block: BlockId) -> bool:
        self._seen.pop(block, None)
        return True

    def _refuse(self) -> Volume:
        raise NotOwnerError(
            f"volume {self.id} is open in this process to be read only; nothing was changed; open the files "
            "with writes=True"
        )
