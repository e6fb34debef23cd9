"""A volume in a directory of this machine, owned by one process."""

from __future__ import annotations

import os
import secrets
import threading
from collections import defaultdict
from pathlib import Path
from typing import Self

from lockgate.storage_core.errors import (
    ConflictError,
    FencedError,
    MalformedRecordError,
    ObjectNotFoundError,
    RecordVersionError,
    StaleReplicaError,
)
from lockgate.storage_core.file_locks import try_lock_exclusive
from lockgate.storage_core.files.volumes.block_list import BlockList, RecentReplicas, listed, usage_of
from lockgate.storage_core.files.volumes.disk import Disk
from lockgate.storage_core.files.volumes.local_replica import LocalReplica
from lockgate.storage_core.files.volumes.protocol import Usage, VolumeId
from lockgate.storage_core.files.volumes.quarantine import Quarantine
from lockgate.storage_core.files.volumes.replica import BlockId, Replica, ReplicaState
from lockgate.storage_core.stamp import Stamp
from lockgate.storage_core.stores.os_errors import translated


class LocalVolume:
    """A `Volume` in a directory.

    Attributes:
        id: Id of the volume, from its directory.

    Source: docs/internals/files.md, "Volumes".
    """

    def __init__(self, folder: Path, *, disk: Disk | None = None) -> None:
        """Open a volume, creating it if necessary.

        Raises:
            ConflictError: Another process owns it.
        """
        self._folder = folder
        self._prefix = f"{folder}{os.sep}"
        self._disk = disk or Disk()
        self._quarantine = Quarantine(folder, self._disk)
        self._replicas: dict[BlockId, LocalReplica] = {}
        self._recent = RecentReplicas()
        self._locks: defaultdict[BlockId, threading.Lock] = defaultdict(threading.Lock)
        self._blocks: BlockList | None = None
        self._listing = threading.Lock()
        with translated("open", str(folder), changes=True):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = try_lock_exclusive(folder / "owner.lock")
        if lock is None:
            owner = (folder / "owner.lock").read_text().strip() or "unknown"
            raise ConflictError(
                f"the volume {folder} is open in the process with pid {owner}; nothing was changed; "
                "end that process, or name another directory"
            )
        self._lock = lock
        try:
            lock.truncate(0)
            lock.write(str(os.getpid()).encode())
            self.id = VolumeId(self._read_id())
        except BaseException:
            lock.close()
            raise

    def _read_id(self) -> str:
        path = self._folder / "volume.id"
        if not path.exists():
            self._disk.store(path, secrets.token_hex(8).encode())
        return path.read_text()

    def close(self) -> None:
        """Give up the directory."""
        for block, replica in list(self._replicas.items()):
            with self._locks[block]:
                replica.release()
        self._lock.close()

    def leave_to_parent(self) -> None:
        """Close a fork's copies of what is open: else they would keep the directory owned after its owner."""
        for replica in self._replicas.values():
            replica.release()
        self._lock.close()

    def __enter__(self) -> Self:
        """Return the volume."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def create(self, block: BlockId, stamp: Stamp) -> Replica:
        """Create an empty replica; one that stands at this stamp is returned."""
        with self._locks[block], translated("create", self._name(block), changes=True):
            found = self._loaded(block)
            if found is None:
                with self._listing:
                    if self._blocks is not None:
                        self._blocks.add(block)
                self._replicas[block] = LocalReplica.create(self._path(block), self._disk, block, stamp)
            return self._at(block, stamp).view()

    def append(self, block: BlockId, stamp: Stamp, offset: int, data: bytes) -> int:
        """Append bytes at the end of a replica; bytes that stand already are compared."""
        with self._locks[block], translated("append", self._name(block), changes=True):
            return self._at(block, stamp).append(offset, data)

    def flush(self, block: BlockId, stamp: Stamp) -> int:
        """Make all received bytes durable, and return their number."""
        with self._locks[block], translated("flush", self._name(block), changes=True):
            return self._at(block, stamp).flush()

    def read(self, block: BlockId, stamp: Stamp, offset: int, size: int) -> bytes:
        """Return durable bytes whose checksums hold; fewer than `size` only at their end."""
        with self._locks[block], translated("read", self._name(block), changes=False):
            found = self._loaded(block)
            if found is None or found.header.stamp != stamp or found.header.state is ReplicaState.STALE:
                raise StaleReplicaError(f"block {block}: volume {self.id} has no replica at stamp {stamp}")
            return found.read(offset, size)

    def stat(self, block: BlockId) -> Replica | None:
        """Return a replica, or None if there is none."""
        with self._locks[block], translated("stat", self._name(block), changes=False):
            found = self._loaded(block)
            if found is not None and not found.exists():
                self._replicas.pop(block).release()  # someone has removed it
                found = self._loaded(block)
            return found.view() if found else None

    def fence(self, block: BlockId, stamp: Stamp) -> Replica:
        """Refuse older stamps from here on, and return the replica once that is durable."""
        with self._locks[block], translated("fence", self._name(block), changes=True):
            found = self._loaded(block)
            if found is None:
                raise ObjectNotFoundError(f"block {block}: volume {self.id} has no replica")
            if found.header.stamp > stamp:
                raise FencedError(_newer(block, found, stamp))
            found.fence(stamp)
            return found.view()

    def trim(self, block: BlockId, stamp: Stamp, length_bytes: int) -> Replica:
        """Cut a replica at the stamp of its fence; a shorter one is refused."""
        with self._locks[block], translated("trim", self._name(block), changes=True):
            replica = self._at(block, stamp)
            replica.trim(length_bytes)
            return replica.view()

    def finish(self, block: BlockId, stamp: Stamp, length_bytes: int, state: ReplicaState) -> Replica:
        """Seal a replica or open it to appends, durably with its bytes."""
        with self._locks[block], translated("finish", self._name(block), changes=True):
            replica = self._at(block, stamp)
            replica.finish(length_bytes, state)
            self._note(replica)
            return replica.view()

    def delete(self, block: BlockId, stamp: Stamp) -> bool:
        """Delete a replica that is not newer than the stamp; return whether there was one."""
        with self._locks[block], translated("delete", self._name(block), changes=True):
            found = self._loaded(block)
            if found is None or found.header.stamp > stamp:
                return False
            found.delete()
            del self._replicas[block]
            with self._listing:
                if self._blocks is not None:
                    self._blocks.remove(block)
            return True

    def quarantine(self, block: BlockId, stamp: Stamp) -> bool:
        """Set a damaged replica aside; one that is newer than the stamp stays."""
        with self._locks[block], translated("quarantine", self._name(block), changes=True):
            try:
                found = self._loaded(block)
            except RecordVersionError:
                raise
            except (MalformedRecordError, FileNotFoundError):
                pass  # its header is damaged, or its log is missing
            else:
                if found is None or found.header.stamp > stamp:
                    return False
            self._quarantine.take(self._path(block))
            if moved := self._replicas.pop(block, None):
                moved.release()
            with self._listing:
                if self._blocks is not None:
                    self._blocks.remove(block)
            return True

    def quarantined(self, after: BlockId | None, limit: int) -> tuple[BlockId, ...]:
        """Return the blocks of the next replicas that are set aside."""
        with translated("quarantined", str(self._folder), changes=False):
            return tuple(self._quarantine.blocks(after, limit))

    def discard(self, block: BlockId) -> bool:
        """Delete the replica of a block that is set aside; return whether there was one."""
        with self._locks[block], translated("discard", self._name(block), changes=True):
            return self._quarantine.discard(block)

    def replicas(self, after: BlockId | None, limit: int) -> tuple[Replica, ...]:
        """Return the next replicas in the order of their blocks."""
        found: list[Replica] = []
        with translated("replicas", str(self._folder), changes=False):
            while len(found) < limit or limit < 1:
                with self._listing:
                    blocks = self._list().after(after, limit - len(found))
                if not blocks:
                    break
                after = blocks[-1]
                found += (one for block in blocks if (one := self._listed(block)) is not None)
        return tuple(found)

    def usage(self) -> Usage:
        """Return the used and the free space."""
        with translated("usage", str(self._folder), changes=False):
            return usage_of(self._folder)

    def _listed(self, block: BlockId) -> Replica | None:
        loaded = self._replicas.get(block)
        if loaded is not None and loaded.header.state is not ReplicaState.SEALED:
            return self.stat(block)
        return listed(block, self._path(block), self.stat)

    def _list(self) -> BlockList:
        """Return the list of blocks, read from the directory at the first call; the caller locks it."""
        if self._blocks is None:
            self._blocks = BlockList(self._folder)
        return self._blocks

    def _loaded(self, block: BlockId) -> LocalReplica | None:
        found = self._replicas.get(block)
        if found is not None and found.is_in_doubt:
            self._replicas.pop(block).release()
            found = None
        if found is None and (found := LocalReplica.load(self._path(block), self._disk)):
            self._replicas[block] = found
        if found is not None:
            self._note(found)
        return found

    def _note(self, replica: LocalReplica) -> None:
        """Note the use of a replica; its block is locked."""
        if replica.is_stored:
            self._recent.use(replica, self._forget)

    def _forget(self, block: BlockId) -> bool:
        """Drop a replica from memory, unless it is in use."""
        lock = self._locks[block]
        if not lock.acquire(blocking=False):
            return False
        try:
            if (found := self._replicas.get(block)) is not None and found.is_stored:
                del self._replicas[block]
        finally:
            lock.release()
        return True

    def _at(self, block: BlockId, stamp: Stamp) -> LocalReplica:
        found = self._loaded(block)
        if found is None:
            raise ObjectNotFoundError(f"block {block}: volume {self.id} has no replica")
        if found.header.stamp > stamp:
            raise FencedError(_newer(block, found, stamp))
        if found.header.stamp < stamp:
            raise ConflictError(f"block {block} has stamp {found.header.stamp}, not {stamp}; fence it first")
        return found

    def _path(self, block: BlockId) -> Path:
        return Path(self._name(block))

    def _name(self, block: BlockId) -> str:
        return f"{self._prefix}{block:020d}"


def _newer(block: BlockId, found: LocalReplica, stamp: Stamp) -> str:
    return f"block {block} has stamp {found.header.stamp}; the call had {stamp}: a newer writer has it; stop"
