"""One segment of a replica: a header of fixed size, then the bytes of an append.

A segment without bytes is a control record: it creates, fences, trims, finishes, composes or deletes the
replica. All segments with bytes are appends, so a listing shows which are which by their sizes.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from lockgate.storage_core.errors import MalformedRecordError, RecordVersionError
from lockgate.storage_core.files.checksums import crc32c
from lockgate.storage_core.files.volumes.replica import BlockId, ReplicaState
from lockgate.storage_core.ids import Token
from lockgate.storage_core.stamp import Stamp

VERSION: Final = 2
_MAGIC: Final = b"LGSG"
_STATES: Final = tuple(ReplicaState)
_START: Final = struct.Struct(">4sI")
_FIELDS: Final = struct.Struct(">4sIQQQQBBQ16sI")
_CRC: Final = struct.Struct(">I")
HEADER_BYTES: Final = _FIELDS.size + _CRC.size


class Kind(IntEnum):
    """What a segment does."""

    CREATE = 0
    APPEND = 1
    FENCE = 2
    TRIM = 3
    FINISH = 4
    COMPOSE = 5
    DELETE = 6


class Segment(NamedTuple):
    """The header of a segment.

    Attributes:
        block: Block of the replica.
        number: Number of the segment in the replica, from 0.
        kind: What it does.
        stamp: Stamp of the replica after it.
        state: State of the replica after it.
        offset: Of an append, where its bytes begin; otherwise the length of the replica after it.
        token: Random token of the request that created it; of a composition, the name of its object.
        checksum: Checksum of the bytes.
    """

    block: BlockId
    number: int
    kind: Kind
    stamp: Stamp
    state: ReplicaState
    offset: int
    token: Token
    checksum: int = 0


def pack(segment: Segment, data: bytes = b"") -> bytes:
    """Return the object of a segment, with the checksum of its bytes."""
    header = _FIELDS.pack(
        _MAGIC,
        VERSION,
        segment.block,
        segment.number,
        segment.stamp.epoch,
        segment.stamp.sequence,
        segment.kind,
        _STATES.index(segment.state),
        segment.offset,
        bytes.fromhex(segment.token),
        crc32c(data, 0),
    )
    return header + _CRC.pack(crc32c(header, 0)) + data


def parse(data: bytes, name: str) -> Segment:
    """Parse the header of a segment.

    Raises:
        RecordVersionError: A newer Lockgate wrote it.
        MalformedRecordError: It is damaged.
    """
    try:
        magic, version = _START.unpack_from(data)
    except struct.error:
        magic, version = b"", VERSION
    if magic == _MAGIC and version > VERSION:
        raise RecordVersionError(f"{name}: version {version} of the segment is newer than this program")
    header, stored = data[: _FIELDS.size], data[_FIELDS.size : HEADER_BYTES]
    if magic != _MAGIC or version != VERSION or stored != _CRC.pack(crc32c(header, 0)):
        raise MalformedRecordError(f"{name}: the segment's header is damaged; the replica is not served")
    _, _, block, index, epoch, sequence, kind, state, offset, token, crc = _FIELDS.unpack(header)
    return Segment(
        BlockId(block),
        index,
        Kind(kind),
        Stamp(epoch, sequence),
        _STATES[state],
        offset,
        Token(token.hex()),
        crc,
    )
