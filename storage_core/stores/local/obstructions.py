"""Find files and folders of a directory tree that conflict with keys."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from lockgate.storage_core.stores.file_tree import Obstacle, folders_of


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
