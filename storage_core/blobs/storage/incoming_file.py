"""Receive a blob into a file, which is hashed as it is written and locked by its writer.

A file without a lock was left by a writer that died, and is deleted.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Final

from lockgate.storage_core.file_locks import lock_exclusive, unlocked
from lockgate.storage_core.stores.os_errors import translated

OnWrite = Callable[[int], None]
BACKGROUND_BYTES: Final = 256 * 1024
"""Pieces this large take longer to hash than to hand to another thread."""


class IncomingFile:
    """The file of a blob being received: written once, sequentially, and hashed.

    Attributes:
        size_bytes: Number of bytes written so far.
    """

    def __init__(self, path: Path, file: FileIO, on_write: OnWrite = lambda _: None) -> None:
        self.path = path
        self.size_bytes = 0
        self._on_write = on_write
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
            while rest:  # an almost full disk writes only a part
                rest = rest[self._file.write(rest) :]
        self.size_bytes += len(data)
        self._on_write(self.size_bytes)

    def close(self) -> None:
        """Stop hashing."""
        self._hash.close()

    @property
    def digest(self) -> str:
        """SHA-256 of the bytes written so far, in hexadecimal."""
        return self._hash.hexdigest()

    def fileno(self) -> int:
        """Return the file's descriptor, which is readable."""
        return self._file.fileno()

    def sync(self) -> None:
        """Make the written bytes durable."""
        with translated("sync", str(self.path), changes=True):
            self._file.flush()
            os.fsync(self._file.fileno())


@contextmanager
def create_incoming(folder: Path, on_write: OnWrite) -> Iterator[IncomingFile]:
    """Create a file for a blob being received; it is deleted after the block unless it was moved.

    Raises:
        AccessDeniedError: The folder cannot be written.
        StoreUnavailableError: The disk is full.
    """
    path = folder / secrets.token_hex(16)
    with translated("write", str(path), changes=True):
        file = lock_exclusive(path, permissions=0o666)  # the lock shows that the writer is alive
    with file, closing(IncomingFile(path, file, on_write)) as incoming:
        try:
            yield incoming
        finally:
            with suppress(OSError):
                path.unlink(missing_ok=True)


def delete_abandoned(folder: Path) -> int:
    """Delete files of writers that died; return how many."""
    dropped = 0
    for path, _ in unlocked(folder):
        path.unlink(missing_ok=True)
        dropped += 1
    return dropped


class Hashing:
    """SHA-256 of pieces of data. Call `close` at the end. Not safe to use from several threads."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._pool: ThreadPoolExecutor | None = None
        self._last: Future[None] | None = None
        self._is_inline = False

    def update(self, data: bytes) -> None:
        """Add a piece; a large piece is hashed in the background, one at a time."""
        self._wait()
        if len(data) >= BACKGROUND_BYTES and not self._is_inline:
            with suppress(RuntimeError):  # no new thread, for example at interpreter shutdown
                self._submit(data)
                return
            self._is_inline = True  # the refused piece may be in the queue of a thread that never runs
        self._hash.update(data)

    def hexdigest(self) -> str:
        """Return the hash of all pieces so far, in hexadecimal."""
        self._wait()
        return self._hash.hexdigest()

    def close(self) -> None:
        """Stop the thread."""
        if self._pool is not None:
            self._pool.shutdown()

    def _submit(self, data: bytes) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="lockgate-hash")
        self._last = self._pool.submit(self._hash.update, data)

    def _wait(self) -> None:
        last, self._last = self._last, None
        if last is not None:
            last.result()
