"""Which servers are at a local store, and whether one died amid a put: a file each, locked while it lives.

    .servers/<random>      dated 0 while puts are under way

A put that dies leaves bytes that no row knows. Where its upload set goes on, as a client's own does, nothing
else tells of that: so whoever finds such a file unlocked has the stores listed.
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

from lockgate.storage_core.blobs.storage.file_locks import lock_alone, unlocked
from lockgate.storage_core.blobs.storage.listing_marker import LastListing
from lockgate.storage_core.forks import FORKS, Forkable
from lockgate.storage_core.stores.os_errors import translated

SERVERS: Final = ".servers"


class Liveness(Forkable):
    """One server at a local store. Safe to use from several threads; a fork is another one.

    Args:
        folder: Of the local store.
    """

    def __init__(self, folder: Path) -> None:
        self._store = folder
        self._folder = folder / SERVERS
        self._file: FileIO | None = None
        self.after_fork_in_child()
        FORKS.register(self)

    def after_fork_in_child(self) -> None:
        """Leave the file to the parent: it is to be unlocked when that dies."""
        if self._file is not None:
            self._file.close()
        self._begin()
        self._changing = threading.Lock()

    @contextmanager
    def putting(self) -> Iterator[None]:
        """Leave word for the next sweep if this process dies within the block.

        Raises:
            StoreUnavailableError: The disk is full.
        """
        with self._changing, translated("write", str(self._path), changes=True):
            file = self._file = self._file or self._shown()
            if not self._puts:
                os.utime(file.fileno(), (0, 0))
            self._puts += 1
        try:
            yield
        finally:
            if file is self._file:  # not in a fork, nor after the end
                self._ended(file)

    def reclaim_from_dead_servers(self) -> None:
        """Have the stores listed if a server died amid a put, and remove the files of all that are gone."""
        with translated("look at", str(self._folder), changes=True):
            for path, died_amid_a_put in self._gone():
                if died_amid_a_put:
                    LastListing(self._store).forget()  # first: whoever dies between does it again
                path.unlink(missing_ok=True)

    def has_dead(self) -> bool:
        """Tell whether a server died amid a put, and no sweep has seen it yet."""
        with translated("look at", str(self._folder), changes=False):
            return any(died_amid_a_put for _, died_amid_a_put in self._gone())

    def close(self) -> None:
        """Leave in peace; amid puts, with word for the next sweep: nobody waits for them any more."""
        with self._changing:
            file, path, is_putting = self._file, self._path, self._puts > 0
            self._begin()
        if file is not None:
            with file, suppress(OSError):
                if not is_putting:
                    path.unlink(missing_ok=True)

    def _begin(self) -> None:
        """Have no file yet."""
        self._file = None
        self._path = self._folder / secrets.token_hex(8)
        self._puts = 0

    def _ended(self, file: FileIO) -> None:
        with self._changing, suppress(OSError):  # a sweep may list the stores for nothing
            self._puts -= 1
            if not self._puts:
                os.utime(file.fileno())

    def _shown(self) -> FileIO:
        file = lock_alone(self._path)
        weakref.finalize(self, file.close).atexit = False  # it may put to the last: its death unlocks
        return file

    def _gone(self) -> Iterator[tuple[Path, bool]]:
        """Yield the files that no server holds, each locked meanwhile; and whether its server was putting."""
        for path, file in unlocked(self._folder):
            yield path, os.fstat(file.fileno()).st_mtime == 0
