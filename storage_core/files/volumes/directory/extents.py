"""Where the bytes of a block stand: a packed record for each frame, because a block may have very many."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from lockgate.storage_core.stamp import Stamp

_RECORD: Final = Struct("=QQQQIIQQ")
_OFFSET: Final = Struct("=Q")


class Extent(NamedTuple):
    """Bytes of one frame that still stand.

    Attributes:
        offset: Their offset in the block.
        end: Offset behind them.
        position: Position of the frame's bytes in the log.
        frame_offset: Offset of the frame's bytes in the block.
        frame_size: Number of the frame's bytes.
        checksum: Checksum of the frame's bytes.
        stamp: Stamp of the log.
    """

    offset: int
    end: int
    position: int
    frame_offset: int
    frame_size: int
    checksum: int
    stamp: Stamp

    @property
    def frame_end(self) -> int:
        """Return the position behind the frame in the log."""
        return self.position + self.frame_size


class Extents:
    """Extents in the order of their offsets."""

    def __init__(self) -> None:
        self._packed = bytearray()

    def __len__(self) -> int:
        return len(self._packed) // _RECORD.size

    def __getitem__(self, at: int) -> Extent:
        start, end, position, offset, size, checksum, *stamp = _RECORD.unpack_from(
            self._packed, at * _RECORD.size
        )
        return Extent(start, end, position, offset, size, checksum, Stamp(*stamp))

    def __iter__(self) -> Iterator[Extent]:
        return (self[at] for at in range(len(self)))

    def append(self, one: Extent) -> None:
        """Add an extent."""
        self._packed += _RECORD.pack(*one[:-1], one.stamp.epoch, one.stamp.sequence)

    def find(self, offset: int) -> int:
        """Return the number of the extent that has a byte."""
        return max(bisect_right(range(len(self)), offset, key=self._offset) - 1, 0)

    def cut(self, end: int) -> None:
        """Drop the bytes from an offset on."""
        count = len(self)
        while count and self._offset(count - 1) >= end:
            count -= 1
        del self._packed[count * _RECORD.size :]
        if count and (last := self[count - 1]).end > end:
            del self._packed[(count - 1) * _RECORD.size :]
            self.append(last._replace(end=end))

    def copy(self) -> Extents:
        """Return a copy."""
        found = Extents()
        found._packed = self._packed.copy()
        return found

    def _offset(self, at: int) -> int:
        offset: int = _OFFSET.unpack_from(self._packed, at * _RECORD.size)[0]
        return offset
