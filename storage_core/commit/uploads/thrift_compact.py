"""Decode Thrift's compact protocol, in which Parquet footers are written, to Python values.

Arrow's reader ends the process on a footer that it does not expect: it has no handler for C++ exceptions
where it reads the metadata of a column. Here each fault of the bytes is a Python exception.

A footer has no maps, so they are not decoded. Source: Apache Thrift, "Thrift Compact protocol encoding".
"""

from __future__ import annotations

import struct
from typing import Any, Final

DEPTH: Final = 24
"""Maximum depth of structs and lists; a Parquet footer has less than ten."""

_TRUE: Final = 1
_BOOLEANS: Final = frozenset({1, 2})
_MAX_NUMBER: Final = 2**64
_MAX_SHIFT: Final = 70
_LONG_LIST: Final = 15


def decode_struct(data: bytes) -> dict[str, Any]:
    """Return the fields of a struct by their numbers, as text; structs within it likewise.

    Raises:
        ValueError: The bytes are no such struct.
    """
    try:
        return _Decoder(data).fields(DEPTH)
    except (IndexError, struct.error):
        raise ValueError("it ends within a value") from None


class _Decoder:
    """The bytes, and the position of the next one. A list has at most as many items as there are bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def fields(self, depth: int) -> dict[str, Any]:
        if not depth:
            raise ValueError("it is nested too deeply")
        found: dict[str, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._zigzag()
            kind = head & 15
            found[str(number)] = kind == _TRUE if kind in _BOOLEANS else self._value(kind, depth)
        return found

    def _value(self, kind: int, depth: int) -> Any:
        value: Any
        match kind:
            case 1 | 2:  # only in a list: the head of a field has the value itself
                value = self._byte() == _TRUE
            case 3:
                value = int.from_bytes(self._bytes(1), signed=True)
            case 4 | 5 | 6:
                value = self._zigzag()
            case 7:
                (value,) = struct.unpack("<d", self._bytes(8))
            case 8:
                value = self._bytes(self._varint())
            case 9 | 10:
                value = self._list(depth - 1)
            case 12:
                value = self.fields(depth - 1)
            case _:
                raise ValueError(f"it has a value of the unknown type {kind}")
        return value

    def _list(self, depth: int) -> list[Any]:
        head = self._byte()
        size = head >> 4
        size = self._varint() if size == _LONG_LIST else size
        if not depth:
            raise ValueError("it is nested too deeply")
        return [self._value(head & 15, depth) for _ in range(size)]

    def _byte(self) -> int:
        byte = self._data[self._at]
        self._at += 1
        return byte

    def _bytes(self, length: int) -> bytes:
        if length > len(self._data) - self._at:
            raise IndexError
        self._at += length
        return self._data[self._at - length : self._at]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if value >= _MAX_NUMBER or shift >= _MAX_SHIFT:
                raise ValueError("it has a number that is too long")
            if byte < 0x80:
                return value
            shift += 7

    def _zigzag(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)
