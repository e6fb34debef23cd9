"""Bytes that come in pieces and are sent together."""

from __future__ import annotations

from typing import Final

SMALL_BYTES: Final = 64 * 1024
"""Smaller pieces are copied together: each as an object of its own would take more memory than its bytes."""


class GatheredBytes:
    """Pieces in their order. A large piece that is `bytes` is kept as it is.

    Copies count: one of 1 MiB in fresh memory costs as much as the write of 1 MiB to a file.

    A signal handler that raises leaves an `add` done or not begun: Python runs handlers between calls and
    jumps, so not between the assignments of one statement.
    """

    def __init__(self) -> None:
        self._large: list[bytes] = []
        self._large_bytes = 0
        self._small = bytearray()

    def __len__(self) -> int:
        return self._large_bytes + len(self._small)

    def add(self, data: bytes | memoryview) -> None:
        """Add a piece; a `memoryview` is one of bytes, and copied."""
        if len(data) < SMALL_BYTES:
            self._small += data
        else:
            self._set([*self._pieces(), data if isinstance(data, bytes) else bytes(data)])

    def joined(self) -> bytes:
        """Return all bytes; of one piece without a copy."""
        if len(self._large) == 1 and not self._small:
            return self._large[0]
        pieces = self._pieces()
        if len(pieces) != 1:
            pieces = [b"".join(pieces)]
        self._set(pieces)
        return pieces[0]

    def take(self) -> bytes:
        """Return all bytes, and keep none."""
        data = self.joined()
        self.clear()
        return data

    def clear(self) -> None:
        """Drop all bytes."""
        self._set([])

    def _pieces(self) -> list[bytes]:
        return [*self._large, bytes(self._small)] if self._small else self._large

    def _set(self, pieces: list[bytes]) -> None:
        size = sum(map(len, pieces))
        self._large, self._large_bytes, self._small = pieces, size, bytearray()
