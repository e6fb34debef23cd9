"""What stands in the way of keys in a directory tree: a file for a folder, or a folder for a file."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from lockgate.storage_core.stores.file_tree import Obstacle, folders_of


def obstacles(root: Path, keys: Iterable[str]) -> Iterator[Obstacle]:
    """Yield what stands in the way of each key; looks once at each folder.

    Args:
        root: Of the tree.
        keys: Checked ones, that cannot lead out of it.
    """
    modes: dict[str, int | None] = {}

    def mode(name: str) -> int | None:
        if name not in modes:
            modes[name] = _mode(root / name)
        return modes[name]

    for key in keys:
        for folder in folders_of(key):
            standing = mode(folder)
            if standing is None:
                break
            if not stat.S_ISDIR(standing):
                yield Obstacle(key, folder)
                break
        else:
            standing = mode(key)
            if standing is not None and stat.S_ISDIR(standing):
                yield Obstacle(key, f"{key}/")


def _mode(path: Path) -> int | None:
    try:
        return os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
