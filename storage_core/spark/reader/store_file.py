"""A stored object as a file that Arrow can read: range reads, with a little read-ahead."""

from __future__ import annotations

import io
from typing import Final

from lockgate.storage_core.stores import Store

READ_AHEAD_BYTES: Final = 256 * 1024
"""Least size of a range request: a Parquet footer, and the page headers around it, come in one."""


class StoreFile(io.RawIOBase):
    """Reads one object by ranges; remembers the last range."""

    def __init__(self, store: Store, key: str, size: int) -> None:
        """Open without a request.

        Args:
            store: Where the object is.
            key: Of the object.
            size: Its bytes, as the destination log has them.
        """
        self._store = store
        self._key = key
        self._size = size
        self._position = 0
        self._window = b""
        self._window_start = 0

    def readable(self) -> bool:
        """Tell that this is a file to read."""
        return True

    def seekable(self) -> bool:
        """Tell that any position may be read next."""
        return True

    def size(self) -> int:
        """Return the object's bytes."""
        return self._size

    def tell(self) -> int:
        """Return the position of the next read."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move; costs nothing."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        """Return up to `size` bytes from the position, all that are left by default."""
        left = max(0, self._size - self._position)
        wanted = left if size is None or size < 0 else min(size, left)
        data = self._range(self._position, wanted)
        self._position += len(data)
        return data

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # type: ignore[override]
        """Fill a buffer from the position; returns how many bytes there were."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _range(self, start: int, length: int) -> bytes:
        if length == 0:
            return b""
        inside = start - self._window_start
        if inside < 0 or inside + length > len(self._window):
            # Parquet is read from its end: near the end, the read-ahead reaches backwards.
            first = max(0, min(start, self._size - READ_AHEAD_BYTES)) if length < READ_AHEAD_BYTES else start
            wanted = max(length + start - first, min(READ_AHEAD_BYTES, self._size - first))
            self._window = self._store.get(self._key, start=first, length=wanted)
            self._window_start, inside = first, start - first
        return self._window[inside : inside + length]
