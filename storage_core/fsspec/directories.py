"""Directories, made of the paths of the files in them, as fsspec describes both."""

from __future__ import annotations

from typing import Any

Info = dict[str, Any]
"""What fsspec tells of a path: `name`, `size`, `type`, and what else is known."""


class FileTree:
    """The files and directories below a root."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._infos: dict[str, Info] = {root: _directory(root)}
        self._children: dict[str, dict[str, None]] = {root: {}}

    def add_file(self, path: str, size: int, **facts: object) -> None:
        """Add a file below the root, with the directories that lead to it."""
        self._add({"name": path, "size": size, "type": "file", **facts})

    def add_directory(self, path: str) -> None:
        """Add a directory below the root; one that is there stays as it is."""
        if path not in self._infos:
            self._add(_directory(path))
            self._children[path] = {}

    def remove(self, path: str) -> None:
        """Remove a file or an empty directory below the root; one that is not there is removed already."""
        if self._infos.pop(path, None) is not None:
            self._children.pop(path, None)
            del self._children[path.rpartition("/")[0]][path]

    def info(self, path: str) -> Info | None:
        """Return what is known about a path; None if there is nothing."""
        found = self._infos.get(path)
        return None if found is None else dict(found)

    def is_file(self, path: str) -> bool:
        """Tell whether a file has this path."""
        found = self._infos.get(path)
        return found is not None and found["type"] == "file"

    def children(self, path: str) -> list[Info]:
        """Return what a directory holds; a file holds itself."""
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
