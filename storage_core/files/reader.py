"""A seekable reader of an appendable file, which follows a file that is being written."""

from __future__ import annotations

import io
import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import accumulate
from operator import index
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.errors import (
    InvalidInputError,
    MalformedRecordError,
    NotAppliedError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from lockgate.storage_core.files.blocks import BlockRecord, known_volume
from lockgate.storage_core.files.length import readable_length
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId
from lockgate.storage_core.files.volumes.replica import BlockId, Replica
from lockgate.storage_core.stamp import Stamp

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

FETCHES: Final = 3
"""Times that the locations are fetched for one read before it fails."""
RETRY_S: Final = 0.1
AHEAD_BYTES: Final = 1024 * 1024
"""Bytes that are read at once for small reads, because a volume checks whole frames for each read."""
READ_BYTES: Final = 8 * AHEAD_BYTES
"""Bytes that are asked of a volume in one call at most."""
PEEKED_BYTES: Final = 8192


class _Part(NamedTuple):
    """A block, and the number of its bytes that may be read."""

    record: BlockRecord
    length_bytes: int


class Reader(io.RawIOBase):
    """Reads flushed bytes exactly, or raises.

    At the end of a file that is being written a read returns no bytes; a later read returns those that were
    flushed meanwhile. A small read reads `AHEAD_BYTES` from the volume, so the next ones may return bytes
    that a truncate has removed since.
    """

    def __init__(
        self,
        records: Callable[[], tuple[BlockRecord, ...]],
        volumes: Mapping[VolumeId, Volume],
        found: tuple[BlockRecord, ...] | None = None,
        *,
        path: str = "the file",
        clock: Clock | None = None,
        refresh: Callable[[], object] = lambda: None,
    ) -> None:
        """Open a file at its start.

        Args:
            records: Fetches the blocks of the file from the journal.
            volumes: The volumes of its blocks.
            found: The blocks as they are now, if they were fetched already.
            path: Names the file in messages.
            clock: Waits between two fetches of the locations.
            refresh: Called before the blocks are fetched again after an error: those of an observer may be
                older than the volumes.

        Raises:
            StoreUnavailableError: Too few members of the last block answered to know its length.
        """
        self._records = records
        self._clock = clock or SystemClock()
        self._refresh = refresh
        self._volumes = volumes
        self._position = 0
        self._ahead = b""
        self._ahead_offset = 0
        self._path = path
        self._seen: tuple[BlockId, Stamp, int] | None = None
        self._parts: tuple[_Part, ...] = ()
        self._ends: tuple[int, ...] = ()
        self._fetch(found)

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move to an offset from the start, the position or the present end.

        Raises:
            InvalidInputError: The position would be negative, or `whence` is unknown.
        """
        self._check_open()
        offset = index(offset)
        if whence == io.SEEK_END:
            self._fetch()
        bases = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._length()}
        if whence not in bases:
            raise InvalidInputError(
                f"seek({offset}, {whence!r}): whence is 0, 1 or 2: start, position or end"
            )
        if bases[whence] + offset < 0:
            raise InvalidInputError(f"seek({offset}, {whence}): give a position that is not negative")
        self._position = bases[whence] + offset
        return self._position

    def tell(self) -> int:
        """Return the position."""
        self._check_open()
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the next `size` bytes, fewer only at the present end of the file.

        Args:
            size: Number of bytes; all up to the present end by default.

        Raises:
            StoreUnavailableError: No member could serve the bytes; the position is unchanged.
            MalformedRecordError: They are damaged, and no other member serves them.
        """
        self._check_open()
        left = math.inf if size is None or index(size) < 0 else size
        begin, found = self._position, []
        try:
            while left and (data := self._take(int(min(left, READ_BYTES)))):
                found.append(data)
                left -= len(data)
        except BaseException:
            self._position = begin
            raise
        return found[0] if len(found) == 1 else b"".join(found)

    readall = read

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read into a buffer as `read` does, and return the number of bytes."""
        into = memoryview(buffer).cast("B")
        data = self._take(len(into))
        into[: len(data)] = data
        return len(data)

    def peek(self, size: int = 0, /) -> bytes:  # noqa: ARG002 - of the standard library's interface
        """Return some of the next bytes and stay before them; `readline` calls this."""
        data = self._take(PEEKED_BYTES)
        self._position -= len(data)
        return data

    def write(self, data: object, /) -> NoReturn:  # noqa: ARG002 - of the standard library's interface
        """Raise `io.UnsupportedOperation`, as each reader of the standard library does."""
        raise io.UnsupportedOperation("write: this is a reader; `Files.append` returns a writer")

    def __reduce__(self) -> NoReturn:
        """Raise `TypeError`: a reader has connections, which no copy and no other process can use."""
        raise TypeError("a reader cannot be copied or pickled: give its path, and open it there")

    def _take(self, size: int) -> bytes:
        """Return the next bytes, from those that were read ahead if they are there."""
        self._check_open()
        at = self._position - self._ahead_offset
        if not 0 <= at < len(self._ahead):
            if size >= AHEAD_BYTES:
                data = self._fetch_bytes(size)
                self._position += len(data)
                return data
            self._ahead, at = self._fetch_bytes(AHEAD_BYTES), 0
            self._ahead_offset = self._position
        data = self._ahead[at : at + size]
        self._position += len(data)
        return data

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("the reader is closed")

    def _fetch_bytes(self, size: int) -> bytes:
        """Return bytes at the position, from one block; none at the present end of the file."""
        if self._position >= self._length():
            self._fetch()
        for attempt in range(1, FETCHES + 1):
            if not size or self._position >= self._length():
                return b""
            number = bisect_right(self._ends, self._position)
            part = self._parts[number]
            offset = self._position - (self._ends[number] - part.length_bytes)
            wanted = min(size, part.length_bytes - offset)
            errors: dict[VolumeId, Exception] = {}
            for volume in part.record.members:
                try:
                    return self._read(volume, part.record, offset, wanted)
                except (NotAppliedError, OutcomeUnknownError) as error:
                    errors[volume] = error
            if attempt < FETCHES:
                self._clock.sleep(RETRY_S if attempt > 1 else 0)  # a recovery may be about to commit
                self._refresh()
                self._fetch()  # another stamp: the block was resealed, or its members changed
        raise self._unreadable(part.record, offset, errors)

    def _read(self, volume: VolumeId, record: BlockRecord, offset: int, size: int) -> bytes:
        data = known_volume(self._volumes, volume).read(record.block, record.stamp, offset, size)
        if len(data) != size:
            raise StoreUnavailableError(f"{len(data)} of {size} bytes at {offset}")
        return data

    def _unreadable(
        self, record: BlockRecord, offset: int, errors: Mapping[VolumeId, Exception]
    ) -> NotAppliedError:
        is_damaged = any(isinstance(error, MalformedRecordError) for error in errors.values())
        said = "; ".join(f"volume {volume}: {error}" for volume, error in errors.items())
        return (MalformedRecordError if is_damaged else StoreUnavailableError)(
            f"{self._path}: no volume serves byte {self._position} (block {record.block}, byte {offset}): "
            f"{said or 'it has none'}; bring back a volume with the bytes; `lockgate files fsck` shows what "
            "is lost"
        )

    def _length(self) -> int:
        return self._ends[-1] if self._ends else 0

    def _fetch(self, found: tuple[BlockRecord, ...] | None = None) -> None:
        """Fetch the locations, unless they were found, and the length of a block that is being written."""
        for attempt in range(1, FETCHES + 1):
            try:
                parts = tuple(self._part(record) for record in found or self._records())
            except (StoreUnavailableError, MalformedRecordError):
                if attempt == FETCHES:
                    raise
                found = None
                self._clock.sleep(RETRY_S)  # a reseal stamps the members before it commits
                self._refresh()
                continue
            self._parts = parts
            self._ends = tuple(accumulate(part.length_bytes for part in parts))
            return

    def _part(self, record: BlockRecord) -> _Part:
        if not record.length_bytes:
            return _Part(record, 0)  # its first flush is not committed: a fence may have found no replica
        replicas: dict[VolumeId, Replica] = {}
        for volume in () if record.is_settled else record.members:
            with suppress(NotAppliedError, OutcomeUnknownError):
                replica = known_volume(self._volumes, volume).stat(record.block)
                if replica is not None:
                    replicas[volume] = replica
        length = readable_length(record, replicas)
        if length is None:
            damaged = "".join(
                f"; volume {volume}: {one.damage}" for volume, one in replicas.items() if one.damage
            )
            raise (MalformedRecordError if damaged else StoreUnavailableError)(
                f"{self._path}: block {record.block} is being recovered, or volumes are down: "
                f"{len(replicas)} of {len(record.members)} do not tell its length{damaged}; try again"
            )
        if self._seen is not None and self._seen[:2] == (record.block, record.stamp):
            length = max(length, self._seen[2])  # what all members had, they still have
        self._seen = (record.block, record.stamp, length)
        return _Part(record, length)
