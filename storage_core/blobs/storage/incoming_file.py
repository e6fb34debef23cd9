"""Blobs on their way in: a file each, hashed as it is written, and locked by its writer.

A file whose writer died is removed by the next one that looks: nobody holds a lock on it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from io import FileIO
from pathlib import Path

from lockgate.storage_core.blobs.storage.file_locks import lock_alone, unlocked
from lockgate.storage_core.blobs.storage.hashing import Hashing
from lockgate.storage_core.stores.os_errors import translated

Heard = Callable[[int], None]


class IncomingFile:
    """A blob on its way in: written once, from the beginning to the end, and hashed as it is.

    Args:
        path: Of the file.
        file: Open, empty, unbuffered.
        heard: Hears how many bytes were written so far.

    Attributes:
        size_bytes: Written so far.
    """

    def __init__(self, path: Path, file: FileIO, heard: Heard = lambda _: None) -> None:
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
def coming_into(folder: Path, heard: Heard) -> Iterator[IncomingFile]:
    """Hold a file in a folder for a blob that comes in; it is gone after the block, unless it was moved.

    Raises:
        AccessDeniedError: The folder cannot be written.
        StoreUnavailableError: The disk is full.
    """
    path = folder / secrets.token_hex(16)
    with translated("write", str(path), changes=True):
        file = lock_alone(path, permissions=0o666)  # the lock says that the writer lives
    with file, closing(IncomingFile(path, file, heard)) as incoming:
        try:
            yield incoming
        finally:
            with suppress(OSError):
                path.unlink(missing_ok=True)


def drop_abandoned(folder: Path) -> int:
    """Remove what writers that died left under way in a folder; returns how many files."""
    dropped = 0
    for path, _ in unlocked(folder):
        path.unlink(missing_ok=True)
        dropped += 1
    return dropped
