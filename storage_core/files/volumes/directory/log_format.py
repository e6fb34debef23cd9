"""The bytes of a log: a header, two slots, and frames that are only appended.

A slot says up to which position the log is durable, and how many bytes all members have; slots are written in
turn without a sync, each in a sector of its own, so one of them is whole, and both may be old. A frame has a
head and, if it is data, bytes. Its head says up to which position the log was durable when it was written.

Checksums are CRC-32C. Those of slots and heads cover the log's block and stamp, and a head's also its
position: what belongs to another log or place is never taken for its own.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import msgspec

from lockgate.storage_core.decoding import decode_msgpack
from lockgate.storage_core.errors import MalformedRecordError, RecordVersionError
from lockgate.storage_core.files.checksums import crc32c
from lockgate.storage_core.files.volumes.replica import BlockId
from lockgate.storage_core.stamp import Stamp

MAGIC: Final = b"LGVL"
VERSION: Final = 3
MARKER: Final = b"\xf7LGf"
"""What each frame begins with."""
DATA: Final = 1
OPEN: Final = 2
"""The length was chosen in spite of damage, and appends go on."""
SEAL: Final = 3
"""The length was chosen, and no appends follow."""

SECTOR_BYTES: Final = 512
_COMPLEMENT: Final = 2**16 - 1
"""A version stands twice, so that a damaged one is not taken for a newer one."""
_PREFIX: Final = struct.Struct(">4sHHII")
_CRC: Final = struct.Struct(">I")
_SLOT: Final = struct.Struct(">QQQ")
_SEED: Final = struct.Struct(">QQQ")
_POSITION: Final = struct.Struct(">Q")
_POSITION_AND_HEAD: Final = struct.Struct(">Q4sIIQQI")
_HEAD: Final = struct.Struct(">4sIIQQII")
HEAD_BYTES: Final = _HEAD.size


class Header(msgspec.Struct, frozen=True, array_like=True):
    """The header of a log.

    Attributes:
        block: Its block.
        stamp: Its stamp.
        token: Random: no two logs have the same header.
        older: Stamp of the block's last commit before the fence that made the log: readers may still name it.
        older_bytes: Number of bytes that the replica had at it, of those that no trim has cut.
        damage: What was wrong with the bytes that were copied; empty if nothing was.
    """

    block: BlockId
    stamp: Stamp
    token: bytes = b""
    older: Stamp = Stamp()
    older_bytes: int = 0
    damage: str = ""


class Slot(NamedTuple):
    """A slot.

    Attributes:
        serial: The greater one is newer.
        durable_end: Position up to which the log was durable.
        acknowledged_bytes: What all members had.
    """

    serial: int
    durable_end: int
    acknowledged_bytes: int


class Frame(NamedTuple):
    """The head of a frame: its kind, number and offset of its bytes, and up to where the log was durable."""

    kind: int
    size: int
    offset: int
    durable_end: int
    checksum: int


def seed_of(header: Header) -> int:
    """Return the checksum from which those of a log's slots and heads begin."""
    return crc32c(_SEED.pack(header.block, header.stamp.epoch, header.stamp.sequence), 0)


def pack_header(header: Header) -> bytes:
    """Return a header, filled with zeros up to a sector."""
    body = msgspec.msgpack.encode(header)
    packed = _PREFIX.pack(MAGIC, VERSION, _COMPLEMENT - VERSION, len(body), crc32c(body, 0)) + body
    return packed + bytes(-len(packed) % SECTOR_BYTES)


def parse_header(data: bytes, name: str, block: BlockId, stamp: Stamp) -> tuple[Header, bytes]:
    """Return a header, parsed and as it is.

    Args:
        data: The log's first bytes.
        name: Name of the log, for messages.
        block: The block whose log it should be.
        stamp: The stamp that it should have.

    Raises:
        RecordVersionError: A newer Lockgate wrote it.
        MalformedRecordError: It is damaged, or that of another log.
    """
    magic, version, check, size, checksum = _PREFIX.unpack(data[: _PREFIX.size].ljust(_PREFIX.size, b"\0"))
    body = data[_PREFIX.size :][:size]
    if magic == MAGIC and version > VERSION and version + check == _COMPLEMENT:
        raise RecordVersionError(f"{name}: version {version} of the log is newer than this program")
    if magic != MAGIC or version != VERSION or not body or crc32c(body, 0) != checksum:
        raise MalformedRecordError(f"{name}: the header of the log is damaged")
    header = decode_msgpack(body, Header)
    if (header.block, header.stamp) != (block, stamp):
        raise MalformedRecordError(f"{name}: it is the log of block {header.block} at stamp {header.stamp}")
    size += _PREFIX.size
    return header, data[: size + -size % SECTOR_BYTES]


def pack_slot(seed: int, slot: Slot) -> bytes:
    """Return a slot."""
    packed = _SLOT.pack(*slot)
    return packed + _CRC.pack(crc32c(packed, seed))


def newest_slot(seed: int, sectors: bytes) -> Slot:
    """Return the newer one of two slots; one that says nothing if none is whole."""
    found = [Slot(0, 0, 0)]
    for number in range(2):
        packed = sectors[number * SECTOR_BYTES :][: _SLOT.size + _CRC.size]
        if len(packed) == _SLOT.size + _CRC.size:
            slot = Slot(*_SLOT.unpack_from(packed))
            if pack_slot(seed, slot) == packed:
                found.append(slot)
    return max(found)


def pack_head(seed: int, position: int, frame: Frame) -> bytes:
    """Return the head of a frame at a position of its log."""
    packed = _POSITION_AND_HEAD.pack(position, MARKER, *frame)
    return packed[_POSITION.size :] + _CRC.pack(crc32c(packed, seed))


def parse_head(seed: int, position: int, data: bytes | memoryview) -> Frame | None:
    """Return the head of a frame; None if it is not intact."""
    if len(data) < HEAD_BYTES or data[: len(MARKER)] != MARKER:
        return None
    frame = Frame._make(_HEAD.unpack(data)[1:-1])
    return frame if pack_head(seed, position, frame) == data else None


def heads_behind(seed: int, rest: bytes, position: int) -> list[Frame]:
    """Return the intact heads of frames in a part of a log.

    Args:
        seed: See `seed_of`.
        rest: The part.
        position: Where it begins in the log.
    """
    found, at = [], rest.find(MARKER)
    while at >= 0:
        frame = parse_head(seed, position + at, rest[at : at + HEAD_BYTES])
        if frame is not None:
            found.append(frame)
        at = rest.find(MARKER, at + 1)
    return found
