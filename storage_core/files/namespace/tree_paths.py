"""Paths of appendable files, and their way through the tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NoReturn

from lockgate.storage_core.errors import InvalidInputError, PathNotDirectoryError, PathNotFoundError
from lockgate.storage_core.files.namespace.rows import ROOT, Inode, InodeKind

NAME_BYTES: Final = 255
DEPTH: Final = 64
"""Most names in a path: each costs a read while the journal's head is held."""


Get = Callable[..., Inode | None]
"""Returns the row of a kind and a key: of the state of a fold, or of a reading."""


def parse_path(path: str) -> tuple[str, ...]:
    """Split a path into its names; the root has none.

    Raises:
        InvalidInputError: It is not absolute, has an empty name, `.`, `..` or a control character, or a name
            or the path is too long.
    """
    if path == "/":
        return ()
    if not path.startswith("/"):
        _refuse(path, "it does not begin with /")
    names = tuple(path[1:].split("/"))
    if len(names) > DEPTH:
        _refuse(path, f"it has {len(names)} names, and may have {DEPTH}")
    for name in names:
        if name in {"", ".", ".."}:
            _refuse(path, f"the name {name!r} is not allowed in it")
        if not name.isprintable():
            _refuse(path, f"the name {name!r} has a character that cannot be printed")
        if len(name.encode()) > NAME_BYTES:
            _refuse(path, f"the name {name[:20]!r}… is longer than {NAME_BYTES} bytes")
    return names


def resolve(get: Get, names: tuple[str, ...]) -> Inode | None:
    """Return what a path names, None if its last name does not exist.

    Raises:
        InvalidInputError: It is the root, which has no row.
        PathNotFoundError: A directory of it does not exist.
        PathNotDirectoryError: One of its directories is a file.
    """
    if not names:
        raise InvalidInputError("/ is the root: it can be listed only; nothing was changed")
    return get(Inode, directory(get, names[:-1]), names[-1])


def directory(get: Get, names: tuple[str, ...]) -> int:
    """Return the id of a directory; raises as `resolve` does."""
    inode = ROOT
    for depth, name in enumerate(names, start=1):
        found = get(Inode, inode, name)
        if found is None:
            raise PathNotFoundError(
                f"the directory {shown(names[:depth])} does not exist; nothing was changed; check the path, "
                "or make it first",
                shown(names[:depth]),
            )
        if found.kind is not InodeKind.DIRECTORY:
            path = shown(names[:depth])
            raise PathNotDirectoryError(f"{path} is a file, not a directory; nothing was changed", path)
        inode = found.inode
    return inode


def shown(names: tuple[str, ...]) -> str:
    """Return the path of these names."""
    return "/" + "/".join(names)


def _refuse(path: str, why: str) -> NoReturn:
    raise InvalidInputError(
        f"path {path[:200]!r}: {why}; nothing was changed; give an absolute path such as /logs/a.log"
    )
