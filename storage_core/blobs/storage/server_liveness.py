"""Detect servers of a local store that died during a put: one file for each server, locked while it runs.

    .servers/<random>      modification time 0 while puts are under way

A put that dies leaves bytes without a row. If its upload set stays open, as a client's set does, nothing else
reveals them: so a process that finds such a file unlocked makes a listing of the stores due.
"""

from __future__ import annotations

import os
import secrets
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Final

from lockgate.storage_core.blobs.storage.listing_time import ListingTime
from lockgate.storage_core.file_locks import lock_exclusive, unlocked
from lockgate.storage_core.forks import FORKS, Forkable
from lockgate.storage_core.stores.os_errors import translated

SERVERS: Final = ".servers"


class Liveness(Forkable):
    """One server of a local store. Safe to use from several threads; a forked child is another server.

    Args:
        folder: Folder of the local store.
    """

    def __init__(self, folder: Path) -> None:
        self._store = folder
        self._folder = folder / SERVERS
        self._file: FileIO | None = None
        self.after_fork_in_child()
        FORKS.register(self)

    def after_fork_in_child(self) -> None:
        """Leave the file to the parent, whose end unlocks it."""
        if self._file is not None:
            self._file.close()
        self._reset()
        self._changing = threading.Lock()

    @contextmanager
    def putting(self) -> Iterator[None]:
        """Mark a put as under way until the block ends, for the next sweep if this process dies.

        Raises:
            StoreUnavailableError: The disk is full.
        """
        with self._changing, translated("write", str(self._path), changes=True):
            file = self._file = self._file or self._create_file()
            if not self._puts:
                os.utime(file.fileno(), (0, 0))
            self._puts += 1
        try:
            yield
        finally:
            if file is self._file:  # not in a forked child, nor after `close`
                self._end_put(file)

    def reclaim_from_dead_servers(self) -> None:
        """Make a listing due if a server died during a put, and delete the files of dead servers."""
        with translated("look at", str(self._folder), changes=True):
            for path, died_during_put in self._dead():
                if died_during_put:
                    ListingTime(self._store).forget()  # first: this process may die, too
                path.unlink(missing_ok=True)

    def has_dead(self) -> bool:
        """Return whether a server died during a put, and no sweep has handled it yet."""
        with translated("look at", str(self._folder), changes=False):
            return any(died_during_put for _, died_during_put in self._dead())

    def close(self) -> None:
        """Delete this server's file; if puts are under way, leave it marked for the next sweep."""
        with self._changing:
            file, path, is_putting = self._file, self._path, self._puts > 0
            self._reset()
        if file is not None:
            with file, suppress(OSError):
                if not is_putting:
                    path.unlink(missing_ok=True)

    def _reset(self) -> None:
        """Start without a file."""
        self._file = None
        self._path = self._folder / secrets.token_hex(8)
        self._puts = 0

    def _end_put(self, file: FileIO) -> None:
        with self._changing, suppress(OSError):  # on an error a sweep lists the stores needlessly
            self._puts -= 1
            if not self._puts:
                os.utime(file.fileno())

    def _create_file(self) -> FileIO:
        file = lock_exclusive(self._path)
        weakref.finalize(self, file.close).atexit = False  # puts may run until the process ends
        return file

    def _dead(self) -> Iterator[tuple[Path, bool]]:
        """Yield the files of dead servers, locked meanwhile, and whether the server died during a put."""
        for path, file in unlocked(self._folder):
            yield path, os.fstat(file.fileno()).st_mtime == 0
