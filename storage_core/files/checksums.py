"""The checksum of replicas: CRC-32C. Processors have an instruction for it, which AWS CRT uses.

Where CRT has no wheel it is computed in Python, slowly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

try:
    from awscrt.checksums import crc32c as _crt_crc32c
except ImportError:
    _crt_crc32c = None

Checksum = Callable[[bytes | memoryview, int], int]
"""Returns the checksum of bytes that follow those of a checksum; 0 if none do."""

_POLYNOMIAL: Final = 0x82F63B78
_ALL_ONES: Final = 0xFFFFFFFF


def _table() -> tuple[int, ...]:
    values = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        values.append(value)
    return tuple(values)


_TABLE: Final = _table()


def slow_crc32c(data: bytes | memoryview, before: int = 0, /) -> int:
    """Return the CRC-32C of bytes after those of `before`, without CRT."""
    value = before ^ _ALL_ONES
    for byte in data:
        value = _TABLE[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ _ALL_ONES


crc32c: Final[Checksum] = _crt_crc32c or slow_crc32c
