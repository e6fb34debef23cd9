"""What a process imports jobs' libraries from: those of one set at a time, and none when it is over.

Python has one `sys.modules` a process. So two sets are never on the import path together: in a pool of
processes nobody waits, for each has one task at a time; in a pool of threads a task waits until those of
another set have ended.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

from lockgate.storage_core.errors import ConflictError, InvalidInputError
from lockgate.storage_core.forks import FORKS, Forkable

OWN: Final = frozenset({"lockgate"})
"""Packages that a library cannot bring: this program would import them in the midst of its work."""


class ImportPath(Forkable):
    """The import path of this process, as far as it is jobs'."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._set = ""
        self._users: list[int] = []
        self._path: Sequence[str] = ()
        self._names: Collection[str] = ()
        self._aside: dict[str, ModuleType] = {}
        FORKS.register(self)

    @contextmanager
    def using(self, folder: str, path: Sequence[str], names: Collection[str]) -> Iterator[None]:
        """Have a set's folders and archives at the head of `sys.path` until the block ends.

        Modules that this process has imported under a name of the set stand aside meanwhile; what was
        imported from the set is forgotten after it. Blocks of the same set share it.

        Args:
            folder: Of the set; none of another.
            path: Its entries of `sys.path`.
            names: Modules and packages at its top.

        Raises:
            InvalidInputError: A name is one of Python's own, or of this program.
            ConflictError: This thread is within a block of another set, which would never end.
        """
        _refuse(names)
        self._enter(folder, path, names)
        try:
            yield
        finally:
            self._leave()

    def after_fork_in_child(self) -> None:
        """Go on with the set of the thread that forked; the others are not here."""
        self._changed = threading.Condition()
        self._users = [user for user in self._users if user == threading.get_ident()]

    def _enter(self, folder: str, path: Sequence[str], names: Collection[str]) -> None:
        user = threading.get_ident()
        with self._changed:
            if user in self._users and self._set != folder:
                raise ConflictError(
                    f"libraries {folder}: this thread imports from {self._set} until a block around this one "
                    "ends; nothing was imported; give the job all its libraries as one set"
                )
            self._changed.wait_for(lambda: not self._users or self._set == folder)
            if not self._users:
                self._set, self._path, self._names = folder, path, names
                self._begin()
            self._users.append(user)

    def _leave(self) -> None:
        with self._changed:
            self._users.remove(threading.get_ident())
            if not self._users:
                self._end()
                self._changed.notify_all()

    def _begin(self) -> None:
        self._aside = {name: sys.modules.pop(name) for name in self._of_the_set()}
        sys.path[:0] = self._path
        importlib.invalidate_caches()

    def _end(self) -> None:
        sys.path[:] = [entry for entry in sys.path if entry not in self._path]
        for name in self._of_the_set():
            del sys.modules[name]
        for entry in list(sys.path_importer_cache):
            if entry.startswith(self._set + os.sep):
                del sys.path_importer_cache[entry]
        sys.modules.update(self._aside)
        self._aside = {}
        importlib.invalidate_caches()

    def _of_the_set(self) -> list[str]:
        """Return the names of all imported modules that are the set's, or in the way of it."""
        return [
            name
            for name, module in list(sys.modules.items())
            if name.partition(".")[0] in self._names or _file(module).startswith(self._set + os.sep)
        ]


def _file(module: Any) -> str:
    """Return the file of a module, without waking one that loads itself when it is asked."""
    return str(getattr(module, "__dict__", {}).get("__file__") or "")


def _refuse(names: Collection[str]) -> None:
    taken = sorted(name for name in names if name in sys.stdlib_module_names or name in OWN)
    if taken:
        raise InvalidInputError(
            f"libraries: {', '.join(taken)} would take the place of what Python, or Lockgate, has under this "
            "name; nothing was imported; rename it, or leave it out of the archive"
        )


IMPORTS: Final = ImportPath()
"""That of this process."""
