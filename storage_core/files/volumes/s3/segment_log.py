"""A replica as the fold of its segments.

Each segment is created at the next index by a process that has folded all segments before it, and only one
process can create an index: so the segments have one order, and each of them was allowed by those before.

A segment has a header of fixed size, then the bytes of an append. One without bytes is a control record: it
creates, fences, trims, finishes, composes or deletes the replica. All segments with bytes are appends, so a
listing shows which are which by their sizes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple

import msgspec

from lockgate.storage_core.decoding import decode_msgpack
from lockgate.storage_core.errors import MalformedRecordError, ObjectNotFoundError, RecordVersionError
from lockgate.storage_core.files.checksums import crc32c
from lockgate.storage_core.files.volumes.replica import BlockId, ReplicaState
from lockgate.storage_core.ids import Token
from lockgate.storage_core.stamp import Stamp
from lockgate.storage_core.stores import Store

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


SEGMENT_BYTES: Final = 8 * 1024 * 1024
"""Bytes that an append gathers before it writes a segment without a flush."""
SEGMENTS: Final = "segments/"
COMPOSED: Final = "composed/"
_LOADS: Final = 3
"""Loads of one replica while compositions of it delete what is read."""


class Piece(msgspec.Struct, frozen=True):
    """Bytes of a replica that have one checksum.

    Attributes:
        offset: Where they begin in the replica.
        size: How many of them stand; a trim makes them fewer.
        key: Object that has them.
        start: Where they begin in the object.
        stored_bytes: How many the object has.
        checksum: Checksum of those; None if the object's own header has it.
    """

    offset: int
    size: int
    key: str
    start: int
    stored_bytes: int
    checksum: int | None = None


@dataclass
class SegmentLog:
    """What is known of one replica.

    Attributes:
        next_index: Index of the next segment.
        exists: Whether there is a replica.
        stamp: Stamp of the replica.
        state: State of the replica.
        pieces: Its bytes, in order.
        superseded: Objects with bytes that the next composition or deletion makes useless.
        older: Lengths that it had at older stamps, whose bytes still stand.
        created: Token of the newest segment if this process has created it.
    """

    block: BlockId
    next_index: int = 0
    exists: bool = False
    stamp: Stamp = Stamp()  # noqa: RUF009 - frozen
    state: ReplicaState = ReplicaState.WRITING
    pieces: list[Piece] = field(default_factory=list)
    superseded: list[str] = field(default_factory=list)
    older: dict[Stamp, int] = field(default_factory=dict)
    created: Token | None = None

    @property
    def length_bytes(self) -> int:
        """Return the number of bytes in the store, which are all durable."""
        return self.pieces[-1].offset + self.pieces[-1].size if self.pieces else 0

    def add_append(self, index: int, size: int) -> None:
        """Fold an append by the size of its object."""
        key, stored = segment_key(self.block, index), size - HEADER_BYTES
        self.pieces.append(Piece(self.length_bytes, stored, key, HEADER_BYTES, stored))
        self.superseded.append(key)
        self.next_index = index + 1

    def add(self, segment: Segment, composed: list[Piece] | None = None) -> None:
        """Fold a control record; a composition comes with its pieces."""
        self.next_index = segment.number + 1
        if segment.kind is Kind.FENCE:
            self.older[self.stamp] = segment.offset
        self.stamp, self.state = segment.stamp, segment.state
        self.exists = segment.kind is not Kind.DELETE
        if segment.kind in {Kind.CREATE, Kind.DELETE, Kind.COMPOSE}:
            self.pieces, self.superseded = [], []
        if segment.kind in {Kind.CREATE, Kind.DELETE}:
            self.older = {}
        if composed is not None:
            self.pieces = composed
            self.superseded = [composed_key(self.block, segment.token)]
        while self.pieces and self.pieces[-1].offset >= segment.offset:
            self.pieces.pop()
        if self.length_bytes > segment.offset:
            last = self.pieces[-1]
            self.pieces[-1] = msgspec.structs.replace(last, size=segment.offset - last.offset)
        if segment.kind is Kind.TRIM:
            self.older = {stamp: min(length, segment.offset) for stamp, length in self.older.items()}


def listed_blocks(store: Store, after: BlockId | None) -> Iterator[tuple[BlockId, Mapping[int, int]]]:
    """Yield the blocks of a store, and the sizes of their segments by index."""
    start = "" if after is None else f"{SEGMENTS}{after:020d}/~"
    block, sizes = BlockId(0), dict[int, int]()
    for page in store.pages(SEGMENTS, after=start):
        for found in page:
            name, _, index = found.key.removeprefix(SEGMENTS).partition("/")
            if not (name.isdecimal() and index.isdecimal()):
                continue
            if sizes and BlockId(int(name)) != block:
                yield block, sizes
                sizes = {}
            block = BlockId(int(name))
            sizes[int(index)] = found.size
    if sizes:
        yield block, sizes


def segment_key(block: BlockId, index: int) -> str:
    """Return the key of a segment."""
    return f"{folder_of(block)}{index:010d}"


def folder_of(block: BlockId) -> str:
    """Return the prefix of a block's segments."""
    return f"{SEGMENTS}{block:020d}/"


def composed_key(block: BlockId, token: Token) -> str:
    """Return the key of an object that a composition made."""
    return f"{composed_folder(block)}{token}"


def composed_folder(block: BlockId) -> str:
    """Return the prefix of the objects that compositions of a block made."""
    return f"{COMPOSED}{block:020d}/"


def segments_after(store: Store, block: BlockId, index: int) -> dict[int, int]:
    """Return the sizes of the segments from an index on, in order."""
    after = segment_key(block, index - 1) if index else ""
    return {
        int(found.key.rpartition("/")[2]): found.size
        for page in store.pages(folder_of(block), after=after)
        for found in page
    }


def load(store: Store, block: BlockId, sizes: Mapping[int, int] | None = None) -> SegmentLog:
    """Load a replica; the log of one that never existed is empty.

    Args:
        store: The volume's store.
        block: The block.
        sizes: The sizes of its segments, if they were just listed.

    Raises:
        MalformedRecordError: A segment is damaged or missing.
    """
    for _ in range(_LOADS):
        found = segments_after(store, block, 0) if sizes is None else sizes
        try:
            return _load(store, block, found)
        except ObjectNotFoundError:
            sizes = None  # a composition or a deletion has deleted it meanwhile
    raise MalformedRecordError(f"{store.url}/{folder_of(block)}: a segment is missing; it is not served")


def salvage(store: Store, block: BlockId) -> SegmentLog:
    """Return what the intact control records tell of a replica that cannot be loaded, to delete it."""
    sizes, stamp = segments_after(store, block, 0), Stamp()
    for index in _controls(sizes):
        with suppress(MalformedRecordError, ObjectNotFoundError):
            stamp = max(stamp, read_segment(store, block, index).stamp)
    return SegmentLog(block, max(sizes, default=-1) + 1, exists=bool(sizes), stamp=stamp)


def refresh(store: Store, log: SegmentLog) -> SegmentLog:
    """Return the log with the segments that were created since."""
    new = segments_after(store, log.block, log.next_index)
    try:
        controls = {index: read_segment(store, log.block, index) for index in _controls(new)}
        for index, size in new.items():
            if index in controls:
                _fold(store, log, controls[index])
            else:
                log.add_append(index, size)
    except ObjectNotFoundError:
        return load(store, log.block)
    return log


def older_lengths(store: Store, block: BlockId) -> dict[Stamp, int]:
    """Return the lengths that a replica had at older stamps, by all its control records.

    A log that was loaded begins at the last composition, before which there may be fences.
    """
    log = SegmentLog(block)
    for index in _controls(segments_after(store, block, 0)):
        log.add(read_segment(store, block, index))
    return log.older


def read_segment(store: Store, block: BlockId, index: int) -> Segment:
    """Read the header of a segment.

    Raises:
        ObjectNotFoundError: There is none.
    """
    key = segment_key(block, index)
    segment = parse(store.get(key, length=HEADER_BYTES), f"{store.url}/{key}")
    if (segment.block, segment.number) != (block, index):
        raise MalformedRecordError(f"{store.url}/{key}: it is segment {segment.number} of {segment.block}")
    return segment


def _controls(sizes: Mapping[int, int]) -> list[int]:
    return [index for index, size in sizes.items() if size <= HEADER_BYTES]


def _load(store: Store, block: BlockId, sizes: Mapping[int, int]) -> SegmentLog:
    log = SegmentLog(block)
    controls: dict[int, Segment] = {}
    for index in reversed(_controls(sizes)):
        controls[index] = segment = read_segment(store, block, index)
        if segment.kind in {Kind.CREATE, Kind.COMPOSE, Kind.DELETE}:
            break
    else:
        if sizes:
            raise MalformedRecordError(f"{store.url}/{folder_of(block)}: its first segment is missing")
    first = min(controls, default=0)
    for index, size in sizes.items():
        if index in controls:
            _fold(store, log, controls[index])
        elif index > first:
            if index != log.next_index:
                raise ObjectNotFoundError(f"segment {log.next_index} of block {block}")
            log.add_append(index, size)
    return log


def _fold(store: Store, log: SegmentLog, segment: Segment) -> None:
    pieces = None
    if segment.kind is Kind.COMPOSE:
        key = composed_key(segment.block, segment.token)
        try:
            pieces = parse_footer(store.get(key, start=segment.offset), key)
        except msgspec.DecodeError:
            raise MalformedRecordError(f"{store.url}/{key}: its list of checksums is damaged") from None
    log.add(segment, pieces)


def pack_footer(pieces: list[tuple[int, int]]) -> bytes:
    """Return sizes and checksums of the bytes of a composed object, which stand behind them."""
    return msgspec.msgpack.encode(pieces)


def parse_footer(data: bytes, key: str) -> list[Piece]:
    """Return the pieces of a composed object."""
    pieces, offset = [], 0
    for size, checksum in decode_msgpack(data, list[tuple[int, int]]):
        pieces.append(Piece(offset, size, key, offset, size, checksum))
        offset += size
    return pieces
