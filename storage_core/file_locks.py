"""File locks (flock) that end with the process that holds them, and waits for them that have a limit.

The holder of an exclusive lock may delete the file; the next process creates it again. A process that stops
while it holds a lock would delay others for ever: so a wait logs the process after a while and ends with an
error. A holder that needs longer shows progress by `touch`: the limit counts from the last one.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import BinaryIO, Final

from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.errors import LockgateError, StoreUnavailableError
from lockgate.storage_core.printable import printable

LOG: Final = logging.getLogger("lockgate.locks")
CLOCK: Final[Clock] = SystemClock()

WAIT_S: Final = 60.0
"""Maximum time without progress of the holder; most need milliseconds."""
WARN_AFTER_S: Final = 10.0
_FIRST_PAUSE_S: Final = 0.001
_LONGEST_PAUSE_S: Final = 0.05
_LOCKS: Final = Path("/proc/locks")


class LockWait:
    """The wait for one lock, also if its file is replaced meanwhile.

    Args:
        what: Name of the lock, for the log.
        limit_s: Maximum time without progress of the holder.
        warn_after_s: Time after which the log names the holder, once.
        refusal: Returns the error for a holder that exceeds the limit.
        holder: Returns the name of the process that has the lock of an open file.
    """

    def __init__(
        self,
        what: str,
        *,
        limit_s: float,
        warn_after_s: float,
        refusal: Callable[[str], LockgateError],
        holder: Callable[[int], str],
    ) -> None:
        self._what = what
        self._limit_s = limit_s
        self._warn_after_s = warn_after_s
        self._refusal = refusal
        self._holder = holder
        self._began_s = self._progress_s = CLOCK.monotonic_s()
        self._touched_ns: int | None = None
        self._warned = False

    def until_locked(self, lock: int, mode: int = fcntl.LOCK_EX) -> None:
        """Lock an open file.

        Raises:
            LockgateError: The holder exceeds the limit; see `refusal`.
        """
        pause_s = _FIRST_PAUSE_S
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(lock, mode | fcntl.LOCK_NB)
                return
            now_s, touched_ns = CLOCK.monotonic_s(), os.fstat(lock).st_mtime_ns
            if touched_ns != self._touched_ns:
                if self._touched_ns is not None:
                    self._progress_s = now_s
                self._touched_ns = touched_ns
            if now_s - self._progress_s >= self._limit_s:
                raise self._refusal(self._holder(lock))
            if now_s - self._began_s >= self._warn_after_s and not self._warned:
                self._warned = True
                LOG.warning("%s: waiting for its lock, which %s has", self._what, self._holder(lock))
            CLOCK.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


class _ExclusiveFile(FileIO):
    """A file with an exclusive lock, which `close` releases even if a forked child has inherited it.

    A lock otherwise ends only when the last copy of the descriptor is closed.
    """

    def __init__(self, opened: int) -> None:
        super().__init__(opened, "r+")
        self._process = os.getpid()

    def close(self) -> None:
        if not self.closed and self._process == os.getpid():
            fcntl.flock(self, fcntl.LOCK_UN)
        super().close()


def lock_shared(path: Path) -> FileIO:
    """Open a file, creating it if necessary, with a shared lock.

    Raises:
        StoreUnavailableError: A process has had it locked exclusively for `WAIT_S` without progress.
    """
    return _locked(path, fcntl.LOCK_SH)


def lock_exclusive(path: Path, *, permissions: int = 0o600, limit_s: float | None = None) -> FileIO:
    """Open a file, creating it with these permissions if necessary, with an exclusive lock.

    Args:
        path: Path of the file.
        permissions: Of a new file.
        limit_s: Maximum time without progress of the holder; by default `WAIT_S`.

    Raises:
        StoreUnavailableError: A process has had it locked for `limit_s` without progress.
    """
    file = _locked(path, fcntl.LOCK_EX, permissions, limit_s)
    touch(file)  # a new holder is progress
    return file


def try_lock_exclusive(path: Path) -> FileIO | None:
    """Do the same without waiting; return None if the file is locked."""
    try:
        return _locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None


def touch(file: FileIO) -> None:
    """Show those who wait for this lock that its holder makes progress. Needs no space on a full disk."""
    now_ns = time.time_ns()  # finer than the kernel's own time for files
    with suppress(OSError, ValueError):  # another thread may have closed it
        os.utime(file.fileno(), ns=(now_ns, now_ns))


def unlocked(folder: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """Yield the files of a folder that no process has locked, each with an exclusive lock meanwhile."""
    with suppress(FileNotFoundError):
        for path in folder.iterdir():
            with suppress(FileNotFoundError, BlockingIOError), path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield path, file


def wait_for(path: Path, limit_s: float | None = None) -> LockWait:
    """Return a wait for the lock of a file, which ends with `StoreUnavailableError`."""
    limit_s = WAIT_S if limit_s is None else limit_s
    what = printable(str(path))
    return LockWait(
        what,
        limit_s=limit_s,
        warn_after_s=WARN_AFTER_S,
        refusal=lambda holder: StoreUnavailableError(
            f"{what}: {holder} has locked it, without progress for {limit_s:g} s; nothing was changed; "
            "continue that process if it is stopped (kill -CONT), or end it (kill -9), which releases the "
            "lock, then try again"
        ),
        holder=lock_holder,
    )


def _locked(path: Path, mode: int, permissions: int = 0o600, limit_s: float | None = None) -> FileIO:
    wait = wait_for(path, limit_s)
    while True:
        try:
            opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, permissions)
        except FileNotFoundError:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            continue
        file = _ExclusiveFile(opened) if mode & fcntl.LOCK_EX else FileIO(opened, "r+")
        try:
            if mode & fcntl.LOCK_NB:
                fcntl.flock(file, mode)
            else:
                wait.until_locked(file.fileno(), mode)
            if _is_at(path, file):
                return file
        except BaseException:
            file.close()
            raise
        file.close()


def _is_at(path: Path, file: FileIO) -> bool:
    """Return whether the path still names this file: a process with an exclusive lock may have deleted it."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def lock_holder(lock: int) -> str:
    """Return the process that has locked a file, from the kernel's list if it has one."""
    status = os.fstat(lock)
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    with suppress(OSError, ValueError):
        for line in _LOCKS.read_text().splitlines():
            fields = line.split()  # 1: FLOCK ADVISORY WRITE <pid> <device>:<inode> 0 EOF
            if fields[1] == "FLOCK" and f"{device}:{status.st_ino}" in fields and int(fields[4]) > 0:
                return f"the process with pid {fields[4]}"
    return "another process"
