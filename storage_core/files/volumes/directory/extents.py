"""Where the bytes of a block stand: packed numbers for each frame, because a block may have very many."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from struct import Struct
from typing import Final, NamedTuple

_REST: Final = Struct("=QII")


class Extent(NamedTuple):
    """Bytes of one frame.

    Attributes:
        offset: Their offset in the block.
        position: Their position in the log.
        size: Their number.
        checksum: Their checksum.
    """

    offset: int
    position: int
    size: int
    checksum: int

    @property
    def end(self) -> int:
        """Return the offset behind them in the block."""
        return self.offset + self.size


class Extents:
    """Extents in the order of their offsets."""

    def __init__(self) -> None:
        self._offsets = array("Q")
        self._rest = bytearray()

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, at: int) -> Extent:
        return Extent(self._offsets[at], *_REST.unpack_from(self._rest, at * _REST.size))

    def append(self, one: Extent) -> None:
        """Add an extent."""
        self._offsets.append(one.offset)
        self._rest += _REST.pack(one.position, one.size, one.checksum)

    def find(self, offset: int) -> int:
        """Return the number of the extent that has a byte."""
        return max(bisect_right(self._offsets, offset) - 1, 0)
