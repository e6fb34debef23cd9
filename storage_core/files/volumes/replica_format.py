"""The two files of a replica: a header that is replaced, and a log of frames that is only appended to.

A frame has its offset, its length and a checksum over its block, these and its bytes. A frame at an offset
below the end takes the place of all bytes from there on, so a trim is one more frame, without bytes: a crash
leaves the bytes before or after it, and never cuts below. The log ends before the first frame whose checksum
fails.

Version 3 has CRC-32C in its header and in all of its frames. Version 2 is version 3 without the block in the
checksums of frames, so that a log with the name of another one is not noticed. Version 1 is version 2 with
CRC-32, and version 0 is version 1 without a stamp, which counts as `(0, 0)`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from lockgate.storage_core.errors import MalformedRecordError, RecordVersionError
from lockgate.storage_core.files.checksums import HAS_CRC32C, Checksum, crc32c
from lockgate.storage_core.files.volumes.replica import BlockId, ReplicaState
from lockgate.storage_core.stamp import Stamp

MAGIC: Final = b"LGRP"
CHECKSUMS: Final[Mapping[int, Checksum]] = {0: zlib.crc32, 1: zlib.crc32, 2: crc32c, 3: crc32c}
"""Checksum of each version of a replica."""
VERSION: Final = 3 if HAS_CRC32C else 1
"""Version of a new replica; one that is there keeps its own, for its frames have their checksums."""
_STATES: Final = tuple(ReplicaState)
_START: Final = struct.Struct(">4sI")
_V0: Final = struct.Struct(">4sIQBQ")
_V1: Final = struct.Struct(">4sIQQQBQ")
_CRC: Final = struct.Struct(">I")
FRAME: Final = struct.Struct(">QII")
_PLACE: Final = struct.Struct(">QI")
_PLACE_IN_BLOCK: Final = struct.Struct(">QQI")
_BLOCK_IN_FRAMES: Final = 3
"""First version whose frames have the block in their checksums."""


class Header(NamedTuple):
    """The header of a replica.

    Attributes:
        version: Version of the replica: of this header and of the frames.
        block: Its block.
        stamp: Its newest stamp.
        state: Its state.
        length_bytes: Length of a sealed replica; most bytes of a suspect one that can be trusted.
    """

    version: int
    block: BlockId
    stamp: Stamp
    state: ReplicaState
    length_bytes: int


class Extent(NamedTuple):
    """Bytes of one frame that still stand: their offset and number, and the frame in the log."""

    offset: int
    size: int
    position: int
    frame_offset: int
    frame_size: int


def pack_header(header: Header) -> bytes:
    """Return a header of version 1 or 2."""
    state = _STATES.index(header.state)
    stamp = header.stamp
    packed = _V1.pack(
        MAGIC, header.version, header.block, stamp.epoch, stamp.sequence, state, header.length_bytes
    )
    return packed + _CRC.pack(CHECKSUMS[header.version](packed, 0))


def parse_header(data: bytes, name: str) -> Header:
    """Parse a header.

    Raises:
        RecordVersionError: A newer Lockgate wrote it.
        MalformedRecordError: It is damaged.
    """
    try:
        magic, version = _START.unpack_from(data)
    except struct.error:
        magic, version = b"", 0
    if magic == MAGIC and version not in CHECKSUMS:
        raise RecordVersionError(
            f"{name}: version {version} of the replica's header is newer than this program"
        )
    layout = _V1 if version else _V0
    body, checksum = data[: layout.size], data[layout.size :]
    is_whole = magic == MAGIC and len(body) == layout.size
    if not is_whole or checksum != _CRC.pack(CHECKSUMS[version](body, 0)):
        raise MalformedRecordError(f"{name}: the replica's header is damaged; it is not served")
    if version:
        _, _, block, epoch, sequence, state, length = layout.unpack(body)
    else:
        _, _, block, state, length = layout.unpack(body)
        epoch = sequence = 0
    return Header(version, BlockId(block), Stamp(epoch, sequence), _STATES[state], length)


def pack_frame_head(header: Header, offset: int, data: bytes) -> bytes:
    """Return the part of a frame before its data; a frame without data trims the replica to the offset."""
    return FRAME.pack(offset, len(data), _checksum(header, offset, data))


def frames(header: Header, log: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield offset, size and position of each intact frame, up to the first one that is not."""
    view = memoryview(log)
    position = end = 0
    while len(log) - position >= FRAME.size:
        offset, size, checksum = FRAME.unpack_from(log, position)
        data = view[position + FRAME.size : position + FRAME.size + size]
        if len(data) < size or offset > end or checksum != _checksum(header, offset, data):
            return
        yield offset, size, position
        position, end = position + FRAME.size + size, offset + size


def check_frame(
    header: Header, head: bytes | memoryview, data: bytes | memoryview, extent: Extent, name: str
) -> None:
    """Compare the head and the bytes of a frame that were read for an extent.

    Raises:
        MalformedRecordError: The frame is damaged.
    """
    offset, size = extent.frame_offset, extent.frame_size
    if len(data) < size or head != FRAME.pack(offset, size, _checksum(header, offset, data)):
        raise MalformedRecordError(f"{name}: the checksum at byte {extent.offset} does not hold")


def extend(extents: list[Extent], offset: int, size: int, position: int) -> None:
    """Add a frame to the extents that stand: it takes the place of all bytes from its offset on."""
    while extents and extents[-1].offset >= offset:
        extents.pop()
    if extents and extents[-1].offset + extents[-1].size > offset:
        extents[-1] = extents[-1]._replace(size=offset - extents[-1].offset)
    if size:
        extents.append(Extent(offset, size, position, offset, size))


def _checksum(header: Header, offset: int, data: bytes | memoryview) -> int:
    checksum = CHECKSUMS[header.version]
    if header.version < _BLOCK_IN_FRAMES:
        place = _PLACE.pack(offset, len(data))
    else:
        place = _PLACE_IN_BLOCK.pack(header.block, offset, len(data))
    return checksum(data, checksum(place, 0))
