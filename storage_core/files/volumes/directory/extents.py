"""Where the bytes of a block stand: a packed record for each frame, because a block may have very many."""

from __future__ import annotations

from bisect import bisect_right
from struct import Struct
from typing import Final, NamedTuple

_RECORD: Final = Struct("=QQII")
_OFFSET: Final = Struct("=Q")


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
        self._packed = bytearray()

    def __len__(self) -> int:
        return len(self._packed) // _RECORD.size

    def __getitem__(self, at: int) -> Extent:
        return Extent._make(_RECORD.unpack_from(self._packed, at * _RECORD.size))

    def append(self, one: Extent) -> None:
        """Add an extent."""
        self._packed += _RECORD.pack(*one)

    def find(self, offset: int) -> int:
        """Return the number of the extent that has a byte."""
        return max(bisect_right(range(len(self)), offset, key=self._offset) - 1, 0)

    def _offset(self, at: int) -> int:
        offset: int = _OFFSET.unpack_from(self._packed, at * _RECORD.size)[0]
        return offset
