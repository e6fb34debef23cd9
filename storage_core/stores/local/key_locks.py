"""Locks of keys for check-and-change, which end with the process that holds them.

    DEST/_lockgate/locks/<digest of the key>    exists while a process holds or has lost the lock

Each key has its own lock, so a process that stops while it holds one delays no call for another key. The wait
for a lock has a limit: after it, the error names the process.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from lockgate.storage_core.errors import LockTimeoutError
from lockgate.storage_core.file_locks import LockWait
from lockgate.storage_core.printable import printable
from lockgate.storage_core.stores.local.listing import LOCKS
from lockgate.storage_core.stores.local.rooted_dir import RootedDir

LOCK_WAIT_S: Final = 10.0
"""A holder needs milliseconds; a disk that hangs may need seconds."""
WARN_AFTER_S: Final = 2.0
_HOLDER: Final = re.compile(r"pid [0-9]{1,10} on [\w.-]{1,255}")
_OPEN: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def locked(tree: RootedDir, key: str) -> Iterator[None]:
    """Exclude every other check-and-change of a key in all processes; a crash releases the lock.

    Raises:
        LockTimeoutError: Another process holds the lock for too long; this call changed nothing.
    """
    name = hashlib.sha256(os.fsencode(key)).hexdigest()
    wait = _wait_for(f"file://{tree.root}/{printable(key)}")
    while True:
        with tree.folder(LOCKS, make=True) as folder, _opened(folder, name) as lock:
            wait.until_locked(lock)
            if not _is_at(folder, name, lock):
                continue  # its holder has deleted it
            with suppress(OSError):  # on a full disk the lock has no name
                os.ftruncate(lock, 0)
                os.pwrite(lock, f"pid {os.getpid()} on {socket.gethostname()}".encode(), 0)
            try:
                yield
            finally:
                _drop(folder, name, lock)
            return


def drop_abandoned(tree: RootedDir, *, older_than_s: float) -> None:
    """Delete the locks of processes that were killed while they held them."""
    with suppress(OSError), tree.folder(LOCKS) as folder:
        for name in os.listdir(folder):  # noqa: PTH208 - pathlib cannot list an open folder
            if os.lstat(name, dir_fd=folder).st_mtime < time.time() - older_than_s:
                with suppress(OSError), _opened(folder, name) as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _drop(folder, name, lock)


def _wait_for(url: str) -> LockWait:
    return LockWait(
        url,
        limit_s=LOCK_WAIT_S,
        warn_after_s=WARN_AFTER_S,
        refusal=lambda holder: LockTimeoutError(
            f"{url}: {holder} has its lock, and did not release it in "
            f"{LOCK_WAIT_S:g} s; this call changed nothing, but that process may still change the "
            "file; nothing was deleted; continue that process if it is stopped (kill -CONT), or end "
            "it (kill -9), which releases the lock, then try again or run recovery"
        ),
        holder=_holder,
    )


@contextmanager
def _opened(folder: int, name: str) -> Iterator[int]:
    process = os.getpid()
    lock = os.open(name, _OPEN, 0o600, dir_fd=folder)
    try:
        yield lock
    finally:
        if process == os.getpid():
            # Closing does not release a lock whose descriptor a forked child has inherited.
            fcntl.flock(lock, fcntl.LOCK_UN)
        os.close(lock)


def _drop(folder: int, name: str, lock: int) -> None:
    """Delete the file of a lock that this process holds."""
    with suppress(OSError):
        if _is_at(folder, name, lock):
            os.unlink(name, dir_fd=folder)


def _is_at(folder: int, name: str, lock: int) -> bool:
    try:
        return os.path.samestat(os.lstat(name, dir_fd=folder), os.fstat(lock))
    except FileNotFoundError:
        return False


def _holder(lock: int) -> str:
    """Return the process that has a lock; the text is from a file, so only its own form is shown."""
    try:
        found = _HOLDER.fullmatch(os.pread(lock, 300, 0).decode())
    except (OSError, UnicodeDecodeError):
        found = None
    return "another process" if found is None else f"the process with {found[0]}"
