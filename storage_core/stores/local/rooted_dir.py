"""A directory tree reached only by names that cannot lead out of it.

Every folder is opened from its parent's descriptor without following symbolic links, so no link, however
late it is put there, can turn a key into a path outside the root.
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
"""How often a folder is made anew when deletes that empty it keep removing it."""


class Tree:
    """A root directory, made at the first write.

    Attributes:
        root: Absolute; its own path may cross links, what lies below may not.
        private: Folders that are made for this user alone.
    """

    def __init__(self, root: Path, private: frozenset[tuple[str, ...]] = frozenset()) -> None:
        self.root = root
        self.private = private
        self._folds_case: bool | None = None

    @contextmanager
    def folder(self, names: Sequence[str], *, make: bool = False) -> Iterator[int]:
        """Give the descriptor of a folder.

        Args:
            names: The folders from the root down; none for the root itself.
            make: Make those that are not there, durably.

        Raises:
            OSError: It is not there, or is no directory; `ELOOP` where a name is a symbolic link.
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
        """Make a folder and act in it, again if a delete that emptied the folder removed it meanwhile.

        A removed directory accepts no new entry, so what `act` made is never lost with the folder.
        """
        for _ in range(_TRIES - 1):
            with suppress(FileNotFoundError), self.folder(names, make=True) as here:
                return act(here)
        with self.folder(names, make=True) as here:
            return act(here)

    def remove_empty(self, names: Sequence[str], *, keep: int = 0) -> None:
        """Remove a folder and its parents as far as they are empty; make durable what was removed.

        Args:
            names: The folders from the root down.
            keep: How many of them, from the root, stay in any case.
        """
        depth = len(names)
        while depth > keep and self._remove_if_empty(names[:depth]):
            depth -= 1
        with suppress(FileNotFoundError), self.folder(names[:depth]) as survivor:
            os.fsync(survivor)

    def refuse_other_case(self, folder: int, name: str) -> None:
        """Refuse a name that a file system which ignores case takes for an entry in another case.

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
                    f"{self.root}: {name!r} and {entry!r} differ in case only, and this file system takes "
                    "them for one; nothing was changed; rename one of them"
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
        # Linux says ENOTDIR for a link too; the remedy is another one.
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
    """Tell whether the file system takes names that differ in case for one; None before the first write."""
    ours, other = root / "_lockgate", root / "_LOCKGATE"
    if not ours.exists():
        return None
    return other.exists() and other.samefile(ours)
