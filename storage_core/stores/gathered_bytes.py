"""Bytes that come in pieces and are sent together."""

from __future__ import annotations

from typing import Final

SMALL_BYTES: Final = 64 * 1024
"""Smaller pieces are copied together: each as an object of its own would take more memory than its bytes."""


class GatheredBytes:
    """Pieces in their order. A large piece that is `bytes` is kept as it is.

    Copies count: one of 1 MiB in fresh memory costs as much as the write of 1 MiB to a file.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._small = bytearray()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, data: bytes | memoryview) -> None:
        """Add a piece; a `memoryview` is one of bytes, and copied."""
        if len(data) < SMALL_BYTES:
            self._small += data
        else:
            self._end_small()
            self._pieces.append(data if isinstance(data, bytes) else bytes(data))
        self._size += len(data)

    def joined(self) -> bytes:
        """Return all bytes; of one piece without a copy."""
        self._end_small()
        if len(self._pieces) != 1:
            self._pieces = [b"".join(self._pieces)]
        return self._pieces[0]

    def take(self) -> bytes:
        """Return all bytes, and keep none."""
        data = self.joined()
        self.clear()
        return data

    def clear(self) -> None:
        """Drop all bytes."""
        self._pieces, self._small, self._size = [], bytearray(), 0

    def _end_small(self) -> None:
        if self._small:
            self._pieces.append(bytes(self._small))
            self._small = bytearray()
