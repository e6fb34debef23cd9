"""File locks (flock) that end with the process that holds them.

The holder of an exclusive lock may delete the file; the next process creates it again.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import BinaryIO


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
    """Open a file, creating it if necessary, with a shared lock. Blocks while it is locked exclusively."""
    return _locked(path, fcntl.LOCK_SH)


def lock_exclusive(path: Path, *, permissions: int = 0o600) -> FileIO:
    """Open a file, creating it with these permissions if necessary, with an exclusive lock.

    Blocks while another process holds it.
    """
    return _locked(path, fcntl.LOCK_EX, permissions)


def try_lock_exclusive(path: Path) -> FileIO | None:
    """Do the same without waiting; return None if the file is locked."""
    try:
        return _locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None


def unlocked(folder: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """Yield the files of a folder that no process has locked, each with an exclusive lock meanwhile."""
    with suppress(FileNotFoundError):
        for path in folder.iterdir():
            with suppress(FileNotFoundError, BlockingIOError), path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield path, file


def _locked(path: Path, mode: int, permissions: int = 0o600) -> FileIO:
    while True:
        try:
            opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, permissions)
        except FileNotFoundError:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            continue
        file = _ExclusiveFile(opened) if mode & fcntl.LOCK_EX else FileIO(opened, "r+")
        try:
            fcntl.flock(file, mode)
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
