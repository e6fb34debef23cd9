"""Locks on files, that end with the process which holds them, however that ends.

Whoever holds a file alone may remove it: the next one that asks makes it anew.
"""

from __future__ import annotations

import fcntl
import os
from io import FileIO
from pathlib import Path


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
            file = FileIO(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+")
        except FileNotFoundError:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            continue
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
