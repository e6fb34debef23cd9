"""One log of a block, read. A log only grows; whatever else changes a replica makes a new log of its bytes.

What is behind the last intact frame was torn off by a crash, or is being written, unless a slot or a later
frame says that it was durable: that is damage. What was intact before it is kept.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final, Self

from lockgate.storage_core.errors import (
    ConflictError,
    InvalidInputError,
    MalformedRecordError,
    RecordVersionError,
)
from lockgate.storage_core.files.checksums import crc32c
from lockgate.storage_core.files.volumes.directory import log_format as form
from lockgate.storage_core.files.volumes.directory.extents import Extent, Extents
from lockgate.storage_core.files.volumes.directory.log_format import HEAD_BYTES, Frame, Header, Slot
from lockgate.storage_core.files.volumes.replica import BlockId, Replica, ReplicaState
from lockgate.storage_core.stamp import Stamp

PEN: Final = ".log"
"""Suffix of a log whose writer has not been fenced."""
FENCED: Final = ".fenced"
SLOTS_BYTES: Final = 2 * form.SECTOR_BYTES
SPAN_BYTES: Final = 1024 * 1024
"""Most bytes of small frames that are read at once, and bytes of a frame that is copied."""
_HEADS_BYTES: Final = 4 * 1024
"""Bytes that are read at once of a log with large frames, if only their heads are wanted."""
_HEADER_BYTES: Final = 64 * 1024
"""More than any header has."""


def log_name(folder: str, stamp: Stamp) -> str:
    """Return the path of a log without its suffix."""
    return f"{folder}/{stamp.epoch:018d}-{stamp.sequence:020d}"


class Log:
    """What is known of a log. Its volume calls it under the block's lock.

    Args:
        folder: Folder of the block.
        header: The header.
        packed: The bytes of the header; none if it is damaged, and then nothing more is read.

    Attributes:
        header: Its header.
        extents: Its bytes.
        end: Position behind the last intact frame.
        durable_end: Position up to which the log says that it is durable.
        length_bytes: Number of bytes of the block.
        durable_bytes: Of these, those that are durable.
        acknowledged_bytes: What all members have.
        damage: What is wrong with it; empty if nothing is known to be.
        state: Whether it takes appends.
        suffix: Of the file that was read; its bytes are read there, or nowhere. Empty: either one.
    """

    suffix = ""

    def __init__(self, folder: str, header: Header, packed: bytes) -> None:
        self.header = header
        self.extents = Extents()
        self.end = len(packed) + SLOTS_BYTES
        self.durable_end = 0
        self.length_bytes = self.durable_bytes = self.acknowledged_bytes = 0
        self.damage = header.damage
        self.state = ReplicaState.WRITING
        self.name = log_name(folder, header.stamp)
        self.folder = folder
        self.packed = packed
        self.seed = form.seed_of(header)
        self.slot = Slot(0, 0, 0)

    def view(self) -> Replica:
        """Return the replica as the protocol has it."""
        return Replica(
            self.header.block,
            self.header.stamp,
            self.state,
            self.length_bytes,
            self.durable_bytes,
            self.acknowledged_bytes,
            self.damage,
            self.header.token.hex(),
        )

    @classmethod
    def headed(cls, folder: str, block: BlockId, stamp: Stamp) -> tuple[Self, int]:
        """Read the header of a log, and return it with the open file, which the caller closes.

        Raises:
            FileNotFoundError: There is no such log.
            RecordVersionError: A newer Lockgate wrote it.
        """
        name = log_name(folder, stamp)
        file, suffix = _open(name)
        try:
            header, packed = form.parse_header(os.pread(file, _HEADER_BYTES, 0), name, block, stamp)
        except MalformedRecordError as error:
            if isinstance(error, RecordVersionError):
                os.close(file)
                raise
            header, packed = Header(block, stamp, damage=str(error)), b""
        log = cls(folder, header, packed)
        log.suffix = suffix
        return log, file

    @classmethod
    def load(cls, folder: str, block: BlockId, stamp: Stamp, *, is_verified: bool = False) -> Self:
        """Read a log.

        Args:
            folder: Folder of the block.
            block: The block.
            stamp: Stamp of the log.
            is_verified: Whether all bytes are read and compared with their checksums. By default those that
                were durable, as the log says, are compared when they are read.

        Raises:
            FileNotFoundError: There is no such log.
            RecordVersionError: A newer Lockgate wrote it.
        """
        log, file = cls.headed(folder, block, stamp)
        try:
            log.extend(file, is_verified=is_verified)
        finally:
            os.close(file)
        return log

    @classmethod
    def outline(cls, folder: str, block: BlockId, stamp: Stamp) -> Replica | None:
        """Return a sealed replica by its header and its last frame; None if more must be read.

        Raises:
            FileNotFoundError: There is no such log.
            RecordVersionError: A newer Lockgate wrote it.
        """
        log, file = cls.headed(folder, block, stamp)
        try:
            end = os.fstat(file).st_size
            at = max(end - HEAD_BYTES, 0)
            frame = form.parse_head(log.seed, at, os.pread(file, HEAD_BYTES, at))
            log.read_slot(file)
        finally:
            os.close(file)
        if not log.packed or frame is None or frame.kind != form.SEAL:
            return None
        if not log.slot.serial or log.slot.durable_end > end:
            return None
        length, token = frame.offset, log.header.token.hex()
        known = log.slot.acknowledged_bytes
        return Replica(block, stamp, ReplicaState.SEALED, length, length, known, token=token)

    def refresh(self) -> bool:
        """Read what was written since; return False if another file has the name now.

        Raises:
            FileNotFoundError: There is no such log any more.
        """
        file, suffix = _open(self.name)
        try:
            if os.pread(file, len(self.packed), 0) != self.packed:
                return False
            self.suffix = suffix
            self.extend(file)
        finally:
            os.close(file)
        return True

    def extend(self, file: int, *, is_verified: bool = False) -> None:
        """Read the frames behind those that are known."""
        bad = -1
        self.read_slot(file)  # before the frames: it must not speak of some that were not read
        while self.packed:
            self.scan(file, 0 if is_verified else self.slot.durable_end)
            durable = max(self._durable_behind(file), self.slot.durable_end, self.durable_end)
            self.durable_end = durable
            if durable <= self.end and self.slot.serial:
                if durable < self.end:
                    os.fdatasync(file)  # what is read, or copied by a fence, may be in memory only
                break
            if bad == self.end:
                self.damage = f"{self.name}: the log is damaged at byte {bad} of the file"
                break
            bad = self.end  # read once more: it may have been read while it was written
        self.durable_bytes = self.length_bytes
        self.acknowledged_bytes = self.slot.acknowledged_bytes
        if self.acknowledged_bytes > self.length_bytes and not self.damage:
            self.damage = f"{self.name}: all members have had {self.acknowledged_bytes} bytes"

    def read_slot(self, file: int) -> None:
        """Read the newest slot. A log that was cut before its frames has none: the newer one may be lost."""
        sectors = os.pread(file, SLOTS_BYTES, len(self.packed))
        if len(sectors) == SLOTS_BYTES:
            self.slot = max(self.slot, form.newest_slot(self.seed, sectors))

    def _durable_behind(self, file: int) -> int:
        """Return what the intact heads behind the first frame that is not intact say is durable."""
        size = os.fstat(file).st_size - self.end
        rest = os.pread(file, size, self.end) if size > 0 else b""
        return max((one.durable_end for one in form.heads_behind(self.seed, rest, self.end)), default=0)

    def scan(self, file: int, verified_from: int) -> None:
        """Take the intact frames from `end` on; the bytes of those before a position are not read."""
        window, begin, span = memoryview(b""), self.end, _HEADS_BYTES
        size = os.fstat(file).st_size
        while (room := size - self.end - HEAD_BYTES) >= 0:
            at = self.end - begin
            if at + HEAD_BYTES > len(window):
                if window:  # of small frames the next ones are read, too
                    span = min(4 * span, SPAN_BYTES) if at < 2 * span else _HEADS_BYTES
                window, begin, at = memoryview(os.pread(file, span, self.end)), self.end, 0
            frame = form.parse_head(self.seed, self.end, window[at : at + HEAD_BYTES])
            if frame is None or frame.size > room or frame.offset != self.length_bytes:
                return
            if frame.size and self.end >= verified_from:
                data: bytes | memoryview = window[at + HEAD_BYTES :][: frame.size]
                if len(data) < frame.size:
                    data = os.pread(file, frame.size, self.end + HEAD_BYTES)
                if len(data) < frame.size or crc32c(data, 0) != frame.checksum:
                    return
            self.take(frame)

    def take(self, frame: Frame) -> None:
        """Note a frame at the end of the log."""
        if frame.kind == form.DATA:
            position = self.end + HEAD_BYTES
            self.extents.append(Extent(frame.offset, position, frame.size, frame.checksum))
            self.length_bytes += frame.size
        else:
            self.state = ReplicaState.SEALED if frame.kind == form.SEAL else ReplicaState.WRITING
            self.damage = ""  # its length was chosen in spite of it
        self.end += HEAD_BYTES + frame.size
        self.durable_end = max(self.durable_end, frame.durable_end)

    def has(self, stamp: Stamp) -> bool:
        """Return whether there are bytes at a stamp: its own, or the one that its fence has replaced."""
        return stamp in {self.header.stamp, self.header.older}

    def read(self, stamp: Stamp, offset: int, size: int) -> bytes:
        """Return durable bytes whose checksums hold; fewer than `size` only at their end.

        Raises:
            MalformedRecordError: They are damaged, or would be behind the damage.
        """
        end = self.durable_bytes
        if stamp != self.header.stamp:
            end = min(end, self.header.older_bytes)
        if self.damage and offset + size > end:
            raise MalformedRecordError(f"{self.damage}; only the {end} bytes before are intact")
        return self.received(offset, min(size, end - offset))

    def received(self, offset: int, size: int) -> bytes:
        """Return bytes, durable or not, whose checksums hold."""
        if offset < 0:
            raise InvalidInputError(f"{self.name}: the offset {offset} is negative")
        extents, found, end = self.extents, list[bytes | memoryview](), offset + size
        at = extents.find(offset)
        while offset < end:
            near = [first := extents[at]]
            while near[-1].end < end:
                one = extents[at + len(near)]
                if one.position + one.size - first.position > SPAN_BYTES:
                    break
                near.append(one)
            for one, data in self._frames(near):
                begin, last = offset - one.offset, min(end, one.end) - one.offset
                found.append(data if (begin, last) == (0, len(data)) else memoryview(data)[begin:last])
                offset = one.offset + last
            at += len(near)
        return b"".join(found)

    def pieces(self, length_bytes: int) -> Iterator[bytes]:
        """Yield the first bytes, to copy them."""
        for offset in range(0, length_bytes, SPAN_BYTES):
            yield self.received(offset, min(SPAN_BYTES, length_bytes - offset))

    def _frames(self, extents: list[Extent]) -> list[tuple[Extent, bytes | memoryview]]:
        """Return the bytes of frames that are near to each other."""
        first, last = extents[0], extents[-1]
        try:
            file, _ = _open(self.name, self.suffix)
        except FileNotFoundError:
            raise MalformedRecordError(f"{self.name}: the log is missing") from None
        try:
            data = os.pread(file, last.position + last.size - first.position, first.position)
        finally:
            os.close(file)
        found: list[tuple[Extent, bytes | memoryview]] = [(first, data)]
        if len(extents) > 1:
            view = memoryview(data)
            found = [(one, view[one.position - first.position :][: one.size]) for one in extents]
        for one, piece in found:
            if len(piece) < one.size or crc32c(piece, 0) != one.checksum:
                raise MalformedRecordError(
                    f"{self.name}: the checksum of the bytes at {one.offset} does not hold"
                )
        return found

    def finish(self, length_bytes: int, state: ReplicaState) -> None:
        """Refuse another length or state."""
        if (length_bytes, state) != (self.length_bytes, self.state) or self.damage:
            raise self.is_made_elsewhere()

    def is_made_elsewhere(self) -> ConflictError:
        """Return the error of a change by a process that does not write the log."""
        return ConflictError(
            f"{self.name}: the replica is {self.state} with {self.length_bytes} bytes, and this process does "
            "not write its log; nothing was changed; fence it at a newer stamp"
        )


def _open(name: str, suffix: str = "") -> tuple[int, str]:
    """Open a log for reading, by default fenced or not, and return its suffix with it.

    Raises:
        FileNotFoundError: There is none.
    """
    try:
        return os.open(name + (suffix or PEN), os.O_RDONLY | os.O_CLOEXEC), suffix or PEN
    except FileNotFoundError:
        if suffix:
            raise
        return os.open(name + FENCED, os.O_RDONLY | os.O_CLOEXEC), FENCED
