"""The `FileTree` protocol: operations of a store whose keys are files in folders, and the obstacles in one.

In an object store the keys `a` and `a/b` can exist at the same time; on a file system they conflict.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from lockgate.storage_core.ids import Token
from lockgate.storage_core.stores.protocol import PendingUpload


class Obstacle(NamedTuple):
    """A file or folder that prevents a key from becoming a file."""

    key: str
    """The key that cannot be written."""
    blocker: str
    """A file where the key needs a folder, or, ending in `/`, a folder with the key's name."""


@runtime_checkable
class FileTree(Protocol):
    """A store whose keys are files in folders."""

    def adopt_file(self, local: Path, key: str, token: Token) -> PendingUpload:
        """Turn a finished file into a pending upload by a hard link, without a copy.

        The file is made durable and keeps its first name. A later write to it makes the upload impossible to
        complete.

        Args:
            local: A regular file on the store's file system, not a link.
            key: Key at which it will be visible.
            token: Owner token; see `Store.begin_upload`.

        Raises:
            UnsupportedStoreError: It is on another file system, or there are no hard links: copy it.
            AccessDeniedError: This user may not create a hard link to it: copy it.
            InvalidInputError: It is not a regular file.
        """

    def present(self, folder: str, names: Sequence[str]) -> list[str]:
        """Return the names of a folder's files among these, in their order; the folder is not read."""

    def obstacles(self, keys: Sequence[str]) -> list[Obstacle]:
        """Return the files and folders that conflict with keys, in the order of the keys."""


def folders_of(key: str) -> Iterator[str]:
    """Yield the parent folders of a key, outermost first: `a/b/c` → `a`, `a/b`."""
    names = key.split("/")
    for depth in range(1, len(names)):
        yield "/".join(names[:depth])


def obstacles(root: Path, keys: Iterable[str]) -> Iterator[Obstacle]:
    """Yield the obstacle of each key that has one; reads each folder's status once.

    Args:
        root: Root of the tree.
        keys: Keys that `check_key` accepts.
    """
    modes: dict[str, int | None] = {}

    def mode(name: str) -> int | None:
        if name not in modes:
            modes[name] = _mode(root / name)
        return modes[name]

    for key in keys:
        for folder in folders_of(key):
            folder_mode = mode(folder)
            if folder_mode is None:
                break
            if not stat.S_ISDIR(folder_mode):
                yield Obstacle(key, folder)
                break
        else:
            key_mode = mode(key)
            if key_mode is not None and stat.S_ISDIR(key_mode):
                yield Obstacle(key, f"{key}/")


def _mode(path: Path) -> int | None:
    try:
        return os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
