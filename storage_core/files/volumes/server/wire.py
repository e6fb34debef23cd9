"""What client and server of volumes exchange: replicas as JSON, bytes in pieces with a checksum."""

from __future__ import annotations

import zlib
from typing import Final

import msgspec

BYTES: Final = "application/octet-stream"
PIECE_BYTES: Final = 4 * 1024 * 1024
"""Most bytes of one request or response."""

CRC_HEADER: Final = "lockgate-crc32"
"""Header with the CRC-32 of a body of bytes."""


class Length(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Length of a replica after an append, or its durable length after a flush."""

    length_bytes: int


class Found(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether there was a replica to delete or to set aside."""

    is_found: bool


class Served(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A volume that the server has."""

    volume: str


def checksum(data: bytes) -> str:
    """Return the value of `CRC_HEADER` for these bytes."""
    return f"{zlib.crc32(data):08x}"
