"""Locks on files, that end with the process which holds them, however that ends.

Whoever holds a file alone may remove it: the next one that asks makes it anew.
"""

from __future__ import annotations

import fcntl
import os
from io import FileIO
from pathlib import Path


class _Alone(FileIO):
    """A file that is held alone. Closing it lets go, also where a fork has inherited it amid that.

    A lock ends with the last descriptor else: the fork's, of which the fork knows nothing.
    """

    def __init__(self, opened: int) -> None:
        super().__init__(opened, "r+")
        self._process = os.getpid()

    def close(self) -> None:
        if not self.closed and self._process == os.getpid():
            fcntl.flock(self, fcntl.LOCK_UN)
        super().close()


def lock_shared(path: Path) -> FileIO:
    """Return a file, made if need be, that none holds alone until it is closed; waits for whoever does."""
    return _locked(path, fcntl.LOCK_SH)


def lock_alone(path: Path) -> FileIO:
    """Return a file, made if need be, that nobody else holds until it is closed; waits for those who do."""
    return _locked(path, fcntl.LOCK_EX)


def try_alone(path: Path) -> FileIO | None:
    """Return the same, None if somebody holds the file."""
    try:
        return _locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None


def _locked(path: Path, mode: int) -> FileIO:
    while True:
        try:
            opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            continue
        file = _Alone(opened) if mode & fcntl.LOCK_EX else FileIO(opened, "r+")
        try:
            fcntl.flock(file, mode)
            if _is_at(path, file):
                return file
        except BaseException:
            file.close()
            raise
        file.close()


def _is_at(path: Path, file: FileIO) -> bool:
    """Tell whether the file is still the one of that name: it was removed if another held it alone."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
