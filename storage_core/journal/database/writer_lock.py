"""Let the processes that write to one SQLite file take turns, roughly in the order in which they came.

SQLite retries a locked file after pauses: of fifty processes that write all the time, some find it locked at
every try. So each write transaction first takes a lock (flock) on the file `<database>-lock`; the kernel
wakes its waiters in order, and releases the lock of a process that dies.

A writer waits as long as the lock is handed on, however many wait: it gives up when one process has had the
lock for `WAIT_S`. The lock only orders the writers; SQLite's own lock keeps them apart.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from threading import Event, Thread
from typing import Final

from lockgate.storage_core.errors import JournalUnavailableError
from lockgate.storage_core.file_locks import lock_holder, touch
from lockgate.storage_core.forks import FORKS, Forkable

WAIT_S: Final = 60.0
"""Longest time for which one process may have the lock; most transactions need milliseconds."""


class WriterLock(Forkable):
    """The lock of the writers of one SQLite file."""

    def __init__(self, path: Path, name: str) -> None:
        self._database = path.resolve()  # two names of one file have one lock
        self._path = self._database.with_name(f"{self._database.name}-lock")
        self._name = name
        self._files: set[FileIO] = set()
        FORKS.register(self)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Wait for the lock, and keep it during the block.

        Raises:
            JournalUnavailableError: Another process had it for `WAIT_S`; nothing was applied.
        """
        file = None
        # A lock lasts as long as a copy of its file: a fork has no copy, or knows it and closes it.
        # SQLite's own error about a disk that cannot be written is clearer.
        with suppress(OSError), FORKS.undivided():
            file = FileIO(open_beside(self._database, self._path), "r+")
            self._files.add(file)
        if file is None:
            yield
            return
        try:
            self._lock(file)
            touch(file)  # the others see that the lock is handed on
            yield
        finally:
            with FORKS.undivided():
                self._files.discard(file)
                if not file.closed:  # a fork has closed its copy
                    fcntl.flock(file, fcntl.LOCK_UN)  # a program that starts at this moment has a copy, too
                    file.close()

    def after_fork_in_child(self) -> None:
        """Close the files of the parent's threads, which keep their locks."""
        for file in self._files:
            file.close()
        self._files = set()

    def _lock(self, file: FileIO) -> None:
        """Lock a file, or raise if one process has had the lock for `WAIT_S`."""
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        is_locked = Event()

        def lock() -> None:
            with suppress(OSError, ValueError):  # closed before this thread ran
                fcntl.flock(file, fcntl.LOCK_EX)
                is_locked.set()

        # flock has no timeout, and retries would lose the order. After a timeout the file is closed: then
        # the kernel releases the lock as soon as this thread gets it.
        Thread(target=lock, name="lockgate-writer-lock", daemon=True).start()
        touched_ns = os.fstat(file.fileno()).st_mtime_ns
        while not is_locked.wait(WAIT_S):
            before_ns, touched_ns = touched_ns, os.fstat(file.fileno()).st_mtime_ns
            if touched_ns != before_ns:
                continue
            raise JournalUnavailableError(
                f"journal {self._name}: {lock_holder(file.fileno())} let no other process write for "
                f"{WAIT_S:g} s; nothing was applied; continue or end that process if it is stopped; more "
                "than some ten writing processes belong on PostgreSQL (LOCKGATE_JOURNAL_URL)"
            )


def open_beside(database: Path, path: Path) -> int:
    """Open a file beside a database. Create it with the database's rights, as SQLite does with its log."""
    flags = os.O_RDWR | os.O_CLOEXEC
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        like = database.stat()
        file = os.open(path, flags | os.O_CREAT, 0o600)
        if os.fstat(file).st_uid == os.geteuid():
            os.fchmod(file, like.st_mode & 0o666)
        if os.geteuid() == 0:
            os.fchown(file, like.st_uid, like.st_gid)
        return file
