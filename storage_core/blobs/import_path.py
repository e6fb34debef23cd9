"""The import path of a process for jobs' libraries: one set at a time.

Python has one `sys.modules` in each process, so two sets are never on the import path together. In a pool of
threads, a task waits until the tasks that use another set have ended.
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

RESERVED: Final = frozenset({"lockgate"})
"""Packages that a library must not contain: this program would import them while it runs."""


class ImportPath(Forkable):
    """Entries of `sys.path` and `sys.modules` that belong to jobs' libraries."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._set = ""
        self._users: list[int] = []
        self._path: Sequence[str] = ()
        self._names: Collection[str] = ()
        self._hidden: dict[str, ModuleType] = {}
        FORKS.register(self)

    @contextmanager
    def using(self, folder: str, path: Sequence[str], names: Collection[str]) -> Iterator[None]:
        """Put a set's folders and archives first in `sys.path` until the block ends.

        Modules already imported under a name of the set are removed from `sys.modules` for that time; modules
        imported from the set are removed after it. Blocks of the same set share it.

        Raises:
            InvalidInputError: A name is taken by the standard library or this program.
            ConflictError: This thread is within a block of another set, and would wait for ever.
        """
        _refuse(names)
        self._enter(folder, path, names)
        try:
            yield
        finally:
            self._leave()

    def after_fork_in_child(self) -> None:
        """Keep the set of the thread that forked; the child has no other threads."""
        self._changed = threading.Condition()
        self._users = [user for user in self._users if user == threading.get_ident()]

    def _enter(self, folder: str, path: Sequence[str], names: Collection[str]) -> None:
        user = threading.get_ident()
        with self._changed:
            if user in self._users and self._set != folder:
                raise ConflictError(
                    f"libraries {folder}: this thread imports from {self._set} until an enclosing block "
                    "ends; nothing was imported; give the job all its libraries as one set"
                )
            self._changed.wait_for(lambda: not self._users or self._set == folder)
            if not self._users:
                self._set, self._path, self._names = folder, path, names
                self._install()
            self._users.append(user)

    def _leave(self) -> None:
        with self._changed:
            self._users.remove(threading.get_ident())
            if not self._users:
                self._uninstall()
                self._changed.notify_all()

    def _install(self) -> None:
        self._hidden = {name: sys.modules.pop(name) for name in self._modules_of_set()}
        sys.path[:0] = self._path
        importlib.invalidate_caches()

    def _uninstall(self) -> None:
        sys.path[:] = [entry for entry in sys.path if entry not in self._path]
        for name in self._modules_of_set():
            del sys.modules[name]
        for entry in list(sys.path_importer_cache):
            if entry.startswith(self._set + os.sep):
                del sys.path_importer_cache[entry]
        sys.modules.update(self._hidden)
        self._hidden = {}
        importlib.invalidate_caches()

    def _modules_of_set(self) -> list[str]:
        """Return the names of imported modules that come from the set, or have a name of the set."""
        return [
            name
            for name, module in list(sys.modules.items())
            if name.partition(".")[0] in self._names or _file(module).startswith(self._set + os.sep)
        ]


def _file(module: Any) -> str:
    """Return the file of a module, without triggering a lazy import."""
    return str(getattr(module, "__dict__", {}).get("__file__") or "")


def _refuse(names: Collection[str]) -> None:
    taken = sorted(name for name in names if name in sys.stdlib_module_names or name in RESERVED)
    if taken:
        raise InvalidInputError(
            f"libraries: {', '.join(taken)} would replace a module of Python or Lockgate with this name; "
            "nothing was imported; rename it, or leave it out of the archive"
        )


IMPORTS: Final = ImportPath()
"""The import path of this process."""
