"""Read a stored object as a file for Arrow, by range requests with read-ahead."""

from __future__ import annotations

import io
from typing import Final

from lockgate.storage_core.commit.destination.kept_files import get_published
from lockgate.storage_core.stores import Store

READ_AHEAD_BYTES: Final = 256 * 1024
"""Minimum size of a range request, so that one request reads a Parquet footer and nearby page headers."""


class StoreFile(io.RawIOBase):
    """Reads one object by ranges; caches the last range."""

    def __init__(self, store: Store, key: str, size: int) -> None:
        """Open the file without a request.

        Args:
            store: Store of the object.
            key: Key of the object.
            size: Size in bytes, from the destination log.
        """
        self._store = store
        self._key = key
        self._size = size
        self._position = 0
        self._window = b""
        self._window_start = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def size(self) -> int:
        """Return the size of the object in bytes."""
        return self._size

    def tell(self) -> int:
        """Return the position of the next read."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position, without a request."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        """Return up to `size` bytes from the position; by default all remaining bytes."""
        left = max(0, self._size - self._position)
        wanted = left if size is None or size < 0 else min(size, left)
        data = self._range(self._position, wanted)
        self._position += len(data)
        return data

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # type: ignore[override]
        """Fill a buffer from the position, and return the number of bytes read."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _range(self, start: int, length: int) -> bytes:
        if length == 0:
            return b""
        inside = start - self._window_start
        if inside < 0 or inside + length > len(self._window):
            # Parquet is read from its end, so near the end the read-ahead extends backwards.
            first = max(0, min(start, self._size - READ_AHEAD_BYTES)) if length < READ_AHEAD_BYTES else start
            wanted = max(length + start - first, min(READ_AHEAD_BYTES, self._size - first))
            self._window = get_published(self._store, self._key, start=first, length=wanted)
            self._window_start, inside = first, start - first
        return self._window[inside : inside + length]
