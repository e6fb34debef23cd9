"""Blobs on their way in: a file each, hashed as it is written, and locked by its writer.

A file whose writer died is removed by the next one that looks: nobody holds a lock on it.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from lockgate.storage_core.blobs.storage.hashing import Hashing
from lockgate.storage_core.stores.os_errors import translated

Heard = Callable[[int], None]


class Incoming:
    """A blob on its way in: written once, from the beginning to the end, and hashed as it is.

    Args:
        path: Of the file.
        file: Open, empty, unbuffered.
        heard: Hears how many bytes were written so far.

    Attributes:
        size_bytes: Written so far.
    """

    def __init__(self, path: Path, file: BinaryIO, heard: Heard = lambda _: None) -> None:
        self.path = path
        self.size_bytes = 0
        self._heard = heard
        self._file = file
        self._hash = Hashing()

    def write(self, data: bytes) -> None:
        """Append bytes.

        Raises:
            StoreUnavailableError: The disk is full.
        """
        self._hash.update(data)
        with translated("write", str(self.path), changes=True):
            rest = memoryview(data)
            while rest:  # a disk that is almost full takes a part and says so
                rest = rest[self._file.write(rest) :]
        self.size_bytes += len(data)
        self._heard(self.size_bytes)

    def close(self) -> None:
        """Hash no more."""
        self._hash.close()

    @property
    def digest(self) -> str:
        """SHA-256 of what was written so far, in hexadecimal."""
        return self._hash.hexdigest()

    def fileno(self) -> int:
        """Return the file's descriptor, which can be read."""
        return self._file.fileno()

    def sync(self) -> None:
        """Make what was written durable."""
        with translated("sync", str(self.path), changes=True):
            self._file.flush()
            os.fsync(self._file.fileno())


@contextmanager
def coming_into(folder: Path, heard: Heard) -> Iterator[Incoming]:
    """Hold a file in a folder for a blob that comes in; it is gone after the block, unless it was moved.

    Raises:
        AccessDeniedError: The folder cannot be written.
        StoreUnavailableError: The disk is full.
    """
    path = folder / secrets.token_hex(16)
    with translated("write", str(path), changes=True):
        file = _new_locked(path)
    with file, closing(Incoming(path, file, heard)) as incoming:
        try:
            yield incoming
        finally:
            with suppress(OSError):
                path.unlink(missing_ok=True)


def drop_abandoned(folder: Path) -> int:
    """Remove what writers that died left under way in a folder; returns how many files."""
    dropped = 0
    with suppress(FileNotFoundError):
        for path in folder.iterdir():
            with suppress(FileNotFoundError, BlockingIOError), path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
                dropped += 1
    return dropped


def _new_locked(path: Path) -> BinaryIO:
    """Make a file under a lock, which says that its writer lives."""
    while True:
        try:
            file = path.open("x+b", buffering=0)
        except FileNotFoundError:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file.fileno()).st_nlink:
                return file
        except BaseException:
            file.close()
            path.unlink(missing_ok=True)
            raise
        file.close()  # taken for a dead writer's, before it was locked, and dropped
