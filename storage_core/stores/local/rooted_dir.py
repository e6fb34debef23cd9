"""A directory tree that no path can escape.

Every folder is opened relative to its parent's descriptor without following symbolic links, so no link,
whenever it is created, can turn a key into a path outside the root.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

from lockgate.storage_core.errors import InvalidInputError

Result = TypeVar("Result")

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_TRIES: Final = 100
"""Maximum number of times that a folder is created while concurrent deletes remove it."""


class RootedDir:
    """A root directory, created at the first write.

    Attributes:
        root: Absolute path. It may contain links, but paths below it may not.
        private: Folders that only this user may read.
    """

    def __init__(self, root: Path, private: frozenset[tuple[str, ...]] = frozenset()) -> None:
        self.root = root
        self.private = private
        self._folds_case: bool | None = None

    @contextmanager
    def folder(self, names: Sequence[str], *, make: bool = False) -> Iterator[int]:
        """Open a folder, and yield its descriptor.

        Args:
            names: Path from the root; empty for the root.
            make: Whether to create missing folders durably.

        Raises:
            OSError: It does not exist or is not a directory; `ELOOP` if a name is a symbolic link.
        """
        here = self._open_root(make=make)
        try:
            for depth, name in enumerate(names, start=1):
                mode = 0o700 if tuple(names[:depth]) in self.private else 0o777
                self.refuse_other_case(here, name)
                below = _open_below(here, name, make=make, mode=mode)
                os.close(here)
                here = below
            yield here
        finally:
            os.close(here)

    def within(self, names: Sequence[str], act: Callable[[int], Result]) -> Result:
        """Create a folder and call `act` with it; repeat this if a concurrent delete removes the folder.

        A removed directory accepts no new entries, so no file that `act` created is lost.
        """
        for _ in range(_TRIES - 1):
            with suppress(FileNotFoundError), self.folder(names, make=True) as here:
                return act(here)
        with self.folder(names, make=True) as here:
            return act(here)

    def remove_empty(self, names: Sequence[str], *, keep: int = 0) -> None:
        """Remove a folder and its parents while they are empty, durably.

        Args:
            names: Path from the root.
            keep: Number of folders from the root that are never removed.
        """
        depth = len(names)
        while depth > keep and self._remove_if_empty(names[:depth]):
            depth -= 1
        with suppress(FileNotFoundError), self.folder(names[:depth]) as survivor:
            os.fsync(survivor)

    def refuse_other_case(self, folder: int, name: str) -> None:
        """Refuse a name that differs only in case from an entry, on a file system that ignores case.

        Raises:
            InvalidInputError: There is such an entry.
        """
        if self._folds_case is None:
            self._folds_case = _folds_case(self.root)
        if self._folds_case is False:
            return
        folded = name.casefold()
        for entry in os.listdir(folder):
            if entry != name and entry.casefold() == folded:
                raise InvalidInputError(
                    f"{self.root}: {name!r} and {entry!r} differ in case only, and this file system ignores "
                    "case; nothing was changed; rename one of them"
                )

    def _remove_if_empty(self, names: Sequence[str]) -> bool:
        try:
            with self.folder(names[:-1]) as parent:
                os.rmdir(names[-1], dir_fd=parent)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def _open_root(self, *, make: bool) -> int:
        try:
            return os.open(self.root, _DIRECTORY)
        except FileNotFoundError:
            if not make:
                raise
        self._make_root()
        return os.open(self.root, _DIRECTORY)

    def _make_root(self) -> None:
        missing = [self.root, *self.root.parents]
        missing = missing[: next(n for n, path in enumerate(missing) if path.exists())]
        for path in reversed(missing):
            path.mkdir(exist_ok=True)
            parent = os.open(path.parent, _DIRECTORY)
            try:
                os.fsync(parent)
            finally:
                os.close(parent)


def _open_below(parent: int, name: str, *, make: bool, mode: int) -> int:
    try:
        return os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    except NotADirectoryError:
        # Linux reports ENOTDIR for a link too, which has another remedy.
        if _is_link(parent, name):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name) from None
        raise
    except FileNotFoundError:
        if not make:
            raise
    with suppress(FileExistsError):
        os.mkdir(name, mode, dir_fd=parent)
        os.fsync(parent)
    return _open_below(parent, name, make=False, mode=mode)


def _is_link(folder: int, name: str) -> bool:
    with suppress(FileNotFoundError):
        return stat.S_ISLNK(os.lstat(name, dir_fd=folder).st_mode)
    return False


def _folds_case(root: Path) -> bool | None:
    """Return whether the file system ignores case; None before the first write."""
    ours, other = root / "_lockgate", root / "_LOCKGATE"
    if not ours.exists():
        return None
    return other.exists() and other.samefile(ours)
