"""Let the processes that write to one SQLite file take turns in the order in which they came.

SQLite retries a locked file after pauses: of fifty processes that write all the time, some find it locked at
every try. Here each writer locks a place in the file `<database>-queue`, behind all others, and waits until
the places before it are free. The kernel frees the place of a process that dies.

The queue only orders the writers; SQLite's own lock keeps them apart. A first in the queue that does not move
is passed: it may be a process that was stopped while it waited.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from lockgate.storage_core.errors import JournalUnavailableError
from lockgate.storage_core.forks import FORKS, Forkable

QUEUE_S: Final = 60.0
"""Timeout of the queue, in which every transaction before this one may take its time."""

STALL_S: Final = 2.0
"""A first in the queue that has not moved for this long is passed, once and for all."""

_NAP_S: Final = 0.001
"""Pause between two looks for each writer that is before this one, up to `_LONGEST_NAP_S`."""

_LONGEST_NAP_S: Final = 0.05

_FLOCK: Final = "hhqqi"
"""The kernel's `struct flock`: type, whence, start, length, process."""

_PIDS: Final = 2**22
"""Linux' greatest process id."""

_END: Final = 2**63 - _PIDS
"""Places are before this offset."""

_SET: Final = getattr(fcntl, "F_OFD_SETLK", None)
"""Locks that belong to an open file, not to the process, so that threads can queue. Only Linux has them."""

_GET: Final = getattr(fcntl, "F_OFD_GETLK", 0)


class _Place(NamedTuple):
    """A place in the queue: a locked range of the file, as long as the number of its process."""

    start: int
    length: int

    @property
    def end(self) -> int:
        return self.start + self.length


class WriterQueue(Forkable):
    """The queue of one SQLite file.

    Args:
        path: Path of the SQLite file.
        name: Name of the journal, for messages.
    """

    def __init__(self, path: Path, name: str) -> None:
        self._database = path.resolve()  # two names of one file have one queue
        self._path = self._database.with_name(f"{self._database.name}-queue")
        self._name = name
        self._files: set[int] = set()
        self._stalled: frozenset[_Place] = frozenset()
        FORKS.register(self)

    @contextmanager
    def turn(self) -> Iterator[int | None]:
        """Wait for this writer's turn, which lasts as long as the block.

        Yields:
            The process that was passed because it did not move, None if there was none.

        Raises:
            JournalUnavailableError: Too many transactions were before this one; nothing was applied.
        """
        with self._opened() as file:
            place = None if file is None else _take_place(file)
            yield None if file is None or place is None else self._wait(file, place)

    def after_fork_in_child(self) -> None:
        """Close the places of the parent's threads, without freeing them."""
        files, self._files = self._files, set()
        for file in files:
            os.close(file)

    @contextmanager
    def _opened(self) -> Iterator[int | None]:
        """Open the file; at the end of the block free the place that was locked in it.

        Yields:
            The file, None if it cannot be written: SQLite's own error is then clearer.
        """
        file = None
        with suppress(OSError):
            file = None if _SET is None else open_beside(self._database, self._path)
        try:
            if file is not None:
                self._files.add(file)
            yield file
        finally:
            if file is not None and file in self._files:  # a fork has closed its copy
                try:
                    self._files.discard(file)
                    with suppress(OSError):
                        _lock(file, fcntl.F_UNLCK, _Place(0, 0))  # a fork may have a copy, which stays open
                finally:
                    os.close(file)

    def _wait(self, file: int, place: _Place) -> int | None:
        """Wait until no place before this one is locked, or only those that do not move."""
        began_s = moved_s = time.monotonic()
        first: _Place | None = None
        while True:
            before = _places(file, place.start)
            stalled = self._stalled = self._stalled.intersection(before)
            waiting = [other for other in before if other not in stalled]
            if not waiting:
                return min(stalled).length if stalled else None
            now_s = time.monotonic()
            if waiting[0] != first:
                first, moved_s = waiting[0], now_s
            if now_s - moved_s >= STALL_S:
                self._stalled |= {first}
            elif now_s - began_s >= QUEUE_S:
                raise JournalUnavailableError(
                    f"journal {self._name}: {len(waiting)} transactions of other writers were still before "
                    f"this one after {QUEUE_S:g} s; nothing was applied; write to one SQLite file from fewer "
                    "processes, or use PostgreSQL (LOCKGATE_JOURNAL_URL)"
                )
            else:
                time.sleep(min(len(waiting) * _NAP_S, _LONGEST_NAP_S))


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


def _take_place(file: int) -> _Place | None:
    """Lock a place behind all others, None if the file system has no such locks."""
    start = time.monotonic_ns() // 1_000_000 * _PIDS
    with suppress(OSError):
        while True:
            while (later := _locked(file, start, _END)) is not None:  # it came in the same millisecond
                start = (later.start // _PIDS + 1) * _PIDS
            with suppress(BlockingIOError):  # another writer has just locked this one
                return _lock(file, fcntl.F_WRLCK, _Place(start, os.getpid()))
    return None


def _lock(file: int, kind: int, place: _Place) -> _Place:
    fcntl.fcntl(file, _SET or 0, struct.pack(_FLOCK, kind, os.SEEK_SET, *place, 0))
    return place


def _places(file: int, end: int) -> list[_Place]:
    """Return the places of other writers before an offset, in order."""
    ranges, found = [(0, end)], list[_Place]()
    while ranges:
        start, stop = ranges.pop()
        place = _locked(file, start, stop)
        if place is not None:
            found.append(place)
            ranges += [(start, place.start), (place.end, stop)]
    return sorted(found)


def _locked(file: int, start: int, stop: int) -> _Place | None:
    """Return a place of another writer within a range, None if there is none."""
    if start >= stop:
        return None
    asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, start, stop - start, 0)
    kind, _, found, length, _ = struct.unpack(_FLOCK, fcntl.fcntl(file, _GET, asked))
    return None if kind == fcntl.F_UNLCK else _Place(found, length)
