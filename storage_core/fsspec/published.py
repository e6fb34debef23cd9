"""Read destinations by their logs: complete jobs only, even while a job commits.

A *snapshot* is one manifest as a tree of directories. A file system instance answers from the snapshot that
it read last. It checks for a newer one when a reader begins: for a listing of the destination itself, a walk,
or a path that the last snapshot lacks. So a walk never sees part of a job, and the next walk sees the newest
state. Files of the last few snapshots stay readable by name while the store keeps them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from fsspec.spec import AbstractBufferedFile  # type: ignore[import-untyped]  # fsspec has no types

from lockgate.storage_core.commit.destination.as_of import AsOf, manifest_as_of
from lockgate.storage_core.commit.destination.kept_files import get_published
from lockgate.storage_core.commit.destination.log import DestinationLog, Manifest
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.log_records import LiveFile
from lockgate.storage_core.errors import InvalidInputError, ObjectNotFoundError
from lockgate.storage_core.fsspec.paths import (
    DirectoryTree,
    Info,
    check_path,
    destination_at,
    fs_path,
    strip_protocol,
)
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores import Store, open_store

SNAPSHOTS: Final = 4


@dataclass(frozen=True)
class Snapshot:
    """A destination as of one turn of its log."""

    root: str
    store: Store
    manifest: Manifest

    @cached_property
    def tree(self) -> DirectoryTree:
        """The live files and their directories."""
        tree = DirectoryTree(self.root)
        for file in self.manifest.files.values():
            tree.add_file(f"{self.root}/{file.key}", file.size, rows=file.rows, job_id=file.job_id)
        return tree

    def file(self, path: str) -> LiveFile | None:
        """Return the live file at a path, None if there is none."""
        return self.manifest.files.get(path.removeprefix(f"{self.root}/"))

    def has_newer(self) -> bool:
        """Return whether the log has a newer turn; costs one listing if it has not."""
        following = DestinationLog(self.store).outcomes(self.manifest.turn)
        return next(following, None) is not None


class PublishedDestinations:
    """Destinations read by one file system instance."""

    def __init__(self, *, as_of: AsOf | None, destination: str | None, settings: Settings | None) -> None:
        """Store the options; this sends no request.

        Args:
            as_of: Read each destination as of this turn, time or tag, as it is when it is first read.
            destination: The only destination to read; by default the nearest at or above a path.
            settings: Settings; by default from the environment.
        """
        self._as_of = as_of
        self._only = None if destination is None else fs_path(destination_at(strip_protocol(destination)))
        self._settings = settings
        self._lock = threading.RLock()
        self._roots: dict[str, str] = {}
        self._snapshots: dict[str, deque[Snapshot]] = {}

    def info(self, path: str) -> Info:
        """Return the description of a file or directory.

        Raises:
            FileNotFoundError: It is not live, or no destination is at or above it.
        """
        snapshot = self._known_file(path) or self._snapshot_with(path)
        found = snapshot.tree.info(path)
        if found is None:
            raise _not_live(path, snapshot)
        return found

    def children(self, path: str, snapshot: Snapshot | None = None) -> list[Info]:
        """List a directory.

        Args:
            path: Path of the directory.
            snapshot: Snapshot to list; by default the last one read, and the newest for a destination itself.

        Raises:
            FileNotFoundError: It is not live, or no destination is at or above it.
        """
        if snapshot is None:
            root = self._root_of(path)
            snapshot = self._snapshot(root, look_for_newer=root == path)
        if snapshot.tree.info(path) is None:
            raise _not_live(path, snapshot)
        return snapshot.tree.children(path)

    def newest(self, path: str) -> Snapshot:
        """Return the newest snapshot of a path's destination.

        Raises:
            FileNotFoundError: No destination is at or above the path.
        """
        return self._snapshot(self._root_of(path), look_for_newer=True)

    def live_file(self, path: str) -> tuple[Snapshot, LiveFile]:
        """Return a live file and its snapshot.

        Raises:
            FileNotFoundError: There is none.
            IsADirectoryError: The path names a directory.
        """
        snapshot = self._known_file(path) or self._snapshot_with(path)
        file = snapshot.file(path)
        if file is not None:
            return snapshot, file
        if snapshot.tree.info(path) is not None:
            raise IsADirectoryError(path)
        raise _not_live(path, snapshot)

    def forget(self) -> None:
        """Forget all snapshots; the next call reads again."""
        with self._lock:
            self._roots.clear()
            self._snapshots.clear()

    def _known_file(self, path: str) -> Snapshot | None:
        with self._lock:
            for root, snapshots in self._snapshots.items():
                if path.startswith(f"{root}/"):
                    for snapshot in reversed(snapshots):
                        if snapshot.tree.is_file(path):
                            return snapshot
        return None

    def _snapshot_with(self, path: str) -> Snapshot:
        """Return the last snapshot read if it contains the path, otherwise the newest."""
        root = self._root_of(path)
        snapshot = self._snapshot(root)
        if snapshot.tree.info(path) is None:
            snapshot = self._snapshot(root, look_for_newer=True)
        return snapshot

    def _snapshot(self, root: str, *, look_for_newer: bool = False) -> Snapshot:
        with self._lock:
            snapshots = self._snapshots.get(root)
            if snapshots is not None and not (look_for_newer and self._is_old(snapshots[-1])):
                return snapshots[-1]
            store = open_store(destination_at(root), self._settings)
            snapshot = Snapshot(root, store, manifest_as_of(DestinationLog(store), self._as_of))
            self._snapshots.setdefault(root, deque(maxlen=SNAPSHOTS)).append(snapshot)
            return snapshot

    def _is_old(self, snapshot: Snapshot) -> bool:
        return self._as_of is None and snapshot.has_newer()

    def _root_of(self, path: str) -> str:
        """Return the nearest destination at or above a path.

        Raises:
            FileNotFoundError: There is none.
        """
        check_path(path)
        if self._only is not None:
            if path != self._only and not path.startswith(f"{self._only}/"):
                raise FileNotFoundError(
                    f"{path}: not below {self._only}, the destination of this file system"
                )
            return self._only
        with self._lock:
            visited = []
            for directory in _at_and_above(path):
                root = self._roots.get(directory)
                visited.append(directory)
                if root is not None or self._is_destination(directory):
                    self._roots.update(dict.fromkeys(visited, root or directory))
                    return root or directory
        raise FileNotFoundError(
            f"{path}: no job was ever set up here or in a directory above, so nothing is published; "
            "look at the path, or name the destination= to read"
        )

    def _is_destination(self, directory: str) -> bool:
        # The folder of a partition may have a name that is invalid for a destination.
        with suppress(ObjectNotFoundError, InvalidInputError):
            open_store(destination_at(directory), self._settings).head(layout.PROBED)
            return True
        return False


class PublishedInput(AbstractBufferedFile):  # type: ignore[misc]  # fsspec has no types
    """A live file being read, in ranges and with fsspec's read-ahead."""

    def __init__(self, fs: object, path: str, snapshot: Snapshot, file: LiveFile, **options: Any) -> None:
        super().__init__(fs, path, "rb", size=file.size, **options)
        self._snapshot = snapshot
        self._path = snapshot.manifest.path(file.key)

    def _fetch_range(self, start: int, end: int) -> bytes:
        try:
            data = get_published(self._snapshot.store, self._path, start=start, length=end - start)
        except ObjectNotFoundError:
            raise FileNotFoundError(
                f"{self.path}: live at turn {self._snapshot.manifest.turn}, and deleted since: a later job "
                "replaced it; list again, and keep replaced files for a while (lockgate keep)"
            ) from None
        if len(data) != min(end, self.size) - start:
            raise OSError(f"{self.path}: not the file that turn {self._snapshot.manifest.turn} published")
        return data


def _at_and_above(path: str) -> Iterator[str]:
    """Yield a path and its parents that can be destinations, nearest first."""
    top = path.count("/") if path.startswith("/") else path.count("/") - 1
    for _ in range(top + 1):
        yield path
        path = path.rpartition("/")[0]


def _not_live(path: str, snapshot: Snapshot) -> FileNotFoundError:
    return FileNotFoundError(
        f"{path}: not among what is live at {snapshot.root}, turn {snapshot.manifest.turn}"
    )
