"""Directories derived from the paths of files, as fsspec describes both."""

from __future__ import annotations

from typing import Any

Info = dict[str, Any]
"""fsspec's description of a path: `name`, `size`, `type`, and optional further fields."""


class DirectoryTree:
    """The files and directories below a root."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._infos: dict[str, Info] = {root: _directory(root)}
        self._children: dict[str, dict[str, None]] = {root: {}}

    def add_file(self, path: str, size: int, **facts: object) -> None:
        """Add a file below the root, and its parent directories."""
        self._add({"name": path, "size": size, "type": "file", **facts})

    def add_directory(self, path: str) -> None:
        """Add a directory below the root, if there is none."""
        if path not in self._infos:
            self._add(_directory(path))
            self._children[path] = {}

    def remove(self, path: str) -> None:
        """Remove a file or an empty directory below the root, if it exists."""
        if self._infos.pop(path, None) is not None:
            self._children.pop(path, None)
            del self._children[path.rpartition("/")[0]][path]

    def info(self, path: str) -> Info | None:
        """Return the description of a path, None if it does not exist."""
        found = self._infos.get(path)
        return None if found is None else dict(found)

    def is_file(self, path: str) -> bool:
        """Return whether a path names a file."""
        found = self._infos.get(path)
        return found is not None and found["type"] == "file"

    def children(self, path: str) -> list[Info]:
        """Return the entries of a directory; a file contains itself."""
        below = self._children.get(path)
        return [dict(self._infos[name]) for name in ([path] if below is None else sorted(below))]

    def _add(self, info: Info) -> None:
        path = info["name"]
        parent = path.rpartition("/")[0]
        self.add_directory(parent)
        self._infos[path] = info
        self._children[parent][path] = None


def _directory(path: str) -> Info:
    return {"name": path, "size": 0, "type": "directory"}
