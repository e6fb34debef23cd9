"""What client and server of volumes exchange: replicas as JSON, bytes in pieces with a checksum.

Each says in a header of its own that it knows CRC-32C; one that does not gets CRC-32.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from lockgate.storage_core.files.checksums import HAS_CRC32C, crc32c

BYTES: Final = "application/octet-stream"
PIECE_BYTES: Final = 4 * 1024 * 1024
"""Most bytes of one request or response."""

CRC_HEADER: Final = "lockgate-crc32"
"""Header with the CRC-32 of a body of bytes."""
CRC32C_HEADER: Final = "lockgate-crc32c"
"""Header with the CRC-32C of a body of bytes, in its place."""
_KNOWN_HEADER: Final = "lockgate-checksums"
_CRC32C: Final = "crc32c"
KNOWN: Final[Mapping[str, str]] = MappingProxyType({_KNOWN_HEADER: _CRC32C} if HAS_CRC32C else {})
"""Headers by which a process says which checksums it knows, besides CRC-32."""


class Length(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Length of a replica after an append, or its durable length after a flush."""

    length_bytes: int


class Found(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether there was a replica to delete or to set aside."""

    is_found: bool


class Served(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A volume that the server has."""

    volume: str


def knows_crc32c(headers: Mapping[str, str]) -> bool:
    """Return whether both this process and the sender of these headers know CRC-32C."""
    return HAS_CRC32C and headers.get(_KNOWN_HEADER) == _CRC32C


def checksum(data: bytes, *, is_crc32c: bool) -> dict[str, str]:
    """Return the header with the checksum of a body."""
    if is_crc32c:
        return {CRC32C_HEADER: f"{crc32c(data, 0):08x}"}
    return {CRC_HEADER: f"{zlib.crc32(data):08x}"}


def holds(data: bytes, headers: Mapping[str, str]) -> bool:
    """Return whether a body has the checksum that its headers name."""
    is_crc32c = CRC32C_HEADER in headers
    return all(headers.get(name) == value for name, value in checksum(data, is_crc32c=is_crc32c).items())
