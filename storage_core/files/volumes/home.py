"""The volumes below this machine's home directory: each changed by one process, read by all.

A process that writes new files owns one of them: the first that is free and has no file to recover, or a new
one. So there are as many as processes have written at once. It also owns each volume in which it has changed
a replica: by an append, a recovery, a truncate or a deletion. It keeps them until it ends: another process
could take a volume between two appends to one file. A read takes none.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from lockgate.storage_core.errors import (
    ConflictError,
    MalformedRecordError,
    RecordVersionError,
    StoreUnavailableError,
)
from lockgate.storage_core.files.volumes.local import LocalVolume
from lockgate.storage_core.files.volumes.protocol import NotOwnerError, Volume, VolumeId
from lockgate.storage_core.files.volumes.replica import ReplicaState
from lockgate.storage_core.files.volumes.replica_format import parse_header
from lockgate.storage_core.files.volumes.view import VolumeView
from lockgate.storage_core.forks import FORKS, Forkable


class HomeVolumes(Forkable, Mapping[VolumeId, Volume]):
    """Volumes by id. Safe to use from several threads; a fork owns none of its parent's.

    Args:
        folder: Directory whose subdirectories are the volumes.
        owns: Whether this process may own volumes. If not, it only reads.
    """

    __hash__ = object.__hash__  # by identity: the hooks of forks are in a set

    def __init__(self, folder: Path, *, owns: bool) -> None:
        self._folder = folder
        self._owns = owns
        self._opened: dict[VolumeId, LocalVolume] = {}
        self._views: dict[VolumeId, VolumeView] = {}
        self._own: VolumeId | None = None
        self._opening = threading.RLock()
        FORKS.register(self)

    def after_fork_in_child(self) -> None:
        """Leave the parent's volumes to it: from now on they are another process's."""
        self._opening = threading.RLock()
        for volume in self._opened.values():
            volume.leave_to_parent()
        self._opened = {}
        self._views = {}  # a thread of the parent may have had one of their locks
        self._own = None

    def own(self) -> tuple[VolumeId, ...]:
        """Return the volume that this process writes new blocks to."""
        with self._opening:
            if self._own is None:
                self._own = self._open_free().id
            return (self._own,)

    def __getitem__(self, volume: VolumeId) -> Volume:
        """Return a volume; this process takes it by the first call that changes it."""
        with self._opening:
            if volume in self._opened:
                return self._opened[volume]
            if volume in self._views and self._views[volume].exists():
                return self._views[volume]
            folder = self._folders()[volume]
            own = partial(self._take, folder, volume) if self._owns else None
            self._views[volume] = VolumeView(folder, volume, own)
            return self._views[volume]

    def __iter__(self) -> Iterator[VolumeId]:
        """Yield the ids of all volumes."""
        return iter(self._folders())

    def __len__(self) -> int:
        """Return the number of volumes."""
        return len(self._folders())

    def close(self) -> None:
        """Give up the volumes."""
        with self._opening:
            while self._opened:
                self._opened.popitem()[1].close()
            self._own = None

    def _folders(self) -> dict[VolumeId, Path]:
        return {VolumeId(path.read_text()): path.parent for path in sorted(self._folder.glob("*/volume.id"))}

    def _take(self, folder: Path, volume: VolumeId) -> LocalVolume:
        with self._opening:
            if volume in self._opened:
                return self._opened[volume]
            if not (folder / "volume.id").exists():
                raise StoreUnavailableError(
                    f"volume {volume} is not in {folder} any more; nothing was changed; bring it back"
                )
            try:
                return self._open(folder)
            except ConflictError:
                owner = (folder / "owner.lock").read_text().strip() or "unknown"
                raise NotOwnerError(
                    f"volume {volume} belongs to another process of this machine, with pid {owner}; nothing "
                    "was changed; try again when that process has ended"
                ) from None

    def _open_free(self) -> LocalVolume:
        for volume in self._opened.values():
            return volume
        for folder in self._folders().values():
            if _has_open_replica(folder):
                continue  # its recovery, in another process, must be able to own it
            try:
                return self._open(folder)
            except ConflictError:
                continue
        return self._open(self._folder / secrets.token_hex(8))

    def _open(self, folder: Path) -> LocalVolume:
        volume = LocalVolume(folder)
        self._opened[volume.id] = volume
        self._views.pop(volume.id, None)
        return volume


def _has_open_replica(folder: Path) -> bool:
    for path in folder.glob("*.head"):
        try:
            if parse_header(path.read_bytes(), str(path)).state is not ReplicaState.SEALED:
                return True
        except FileNotFoundError:
            continue  # its owner has just deleted it
        except (MalformedRecordError, RecordVersionError):
            return True  # it may be one; `lockgate volumes verify` names it
    return False
