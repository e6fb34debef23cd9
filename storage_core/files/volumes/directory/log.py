"""One log of a block, read with the logs that it continues.

What is behind the last intact frame was torn off by a crash, or is being written, unless a slot or a later
frame says that it was durable: that is damage. What was intact before it is kept, but for bytes that a lost
trim may have cut.
"""

from __future__ import annotations

import os
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
from lockgate.storage_core.files.volumes.directory.log_format import HEAD_BYTES, Base, Frame, Header, Slot
from lockgate.storage_core.files.volumes.replica import BlockId, Replica, ReplicaState
from lockgate.storage_core.stamp import Stamp

PEN: Final = ".log"
"""Suffix of a log whose writer has not been fenced."""
FENCED: Final = ".fenced"
SLOTS_BYTES: Final = 2 * form.SECTOR_BYTES
SPAN_BYTES: Final = 1024 * 1024
"""Most bytes of small frames that are read at once."""
_HEADS_BYTES: Final = 4 * 1024
"""Bytes that are read at once of a log with large frames, if only their heads are wanted."""
_HEADER_BYTES: Final = 64 * 1024
"""More than any header has."""


def log_name(folder: str, stamp: Stamp) -> str:
    """Return the path of a log without its suffix."""
    return f"{folder}/{stamp.epoch:018d}-{stamp.sequence:020d}"


def open_log(folder: str, stamp: Stamp) -> int:
    """Open a log for reading, fenced or not.

    Raises:
        FileNotFoundError: There is none.
    """
    name = log_name(folder, stamp)
    try:
        return os.open(name + PEN, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return os.open(name + FENCED, os.O_RDONLY | os.O_CLOEXEC)


class Log:
    """What is known of a log. Its volume calls it under the block's lock.

    Args:
        folder: Folder of the block.
        header: The header.
        packed: The bytes of the header; none if it is damaged, and then nothing more is read.

    Attributes:
        header: Its header.
        extents: The bytes that stand, of this log and of those before it.
        end: Position behind the last intact frame.
        limit: Position up to which a fence has taken it; None if it counts as far as it goes.
        durable_end: Position up to which the log, or a fence, says that it is durable.
        length_bytes: Number of bytes of the block.
        durable_bytes: Of these, those that are durable.
        acknowledged_bytes: What all members have.
        state: Whether it takes appends.
    """

    def __init__(self, folder: str, header: Header, packed: bytes) -> None:
        self.header = header
        self.extents = Extents()
        self.end = len(packed) + SLOTS_BYTES
        self.limit: int | None = None
        self.durable_end = 0
        self.length_bytes = self.durable_bytes = self.acknowledged_bytes = 0
        self.state = ReplicaState.WRITING
        self.folder = folder
        self.name = log_name(folder, header.stamp)
        self.packed = packed
        self.seed = form.seed_of(header)
        self.slot = Slot(0, 0, 0, form.NEVER_CUT)
        self._ends: dict[Stamp, int] = {}
        self._cuts: list[tuple[int, int]] = []
        self._given_end = self.end + (header.copied_bytes + HEAD_BYTES if header.copied_bytes else 0)
        self._mark = header.damage
        self._lacking = self._bad = ""

    @property
    def damage(self) -> str:
        """Return what is wrong with the log or those before it; empty if nothing is known to be."""
        return self._mark or self._lacking or self._bad

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
        )

    @classmethod
    def headed(cls, folder: str, block: BlockId, stamp: Stamp) -> tuple[Self, int]:
        """Read the header of a log, and return it with the open file, which the caller closes.

        Raises:
            FileNotFoundError: There is no such log.
            RecordVersionError: A newer Lockgate wrote it.
        """
        file = open_log(folder, stamp)
        try:
            data = os.pread(file, _HEADER_BYTES, 0)
            return cls(folder, *form.parse_header(data, log_name(folder, stamp), block, stamp)), file
        except MalformedRecordError as error:
            if not isinstance(error, RecordVersionError):
                return cls(folder, Header(block, stamp, damage=str(error)), b""), file
            os.close(file)
            raise

    @classmethod
    def load(
        cls, folder: str, block: BlockId, stamp: Stamp, *, limit: int | None = None, is_verified: bool = False
    ) -> Self:
        """Read a log and those before it.

        Args:
            folder: Folder of the block.
            block: The block.
            stamp: Stamp of the log.
            limit: See `Log`.
            is_verified: Whether all bytes are read and compared with their checksums. By default those that
                were durable, as the log says, are compared when they are read.

        Raises:
            FileNotFoundError: There is no such log.
            RecordVersionError: A newer Lockgate wrote it.
        """
        log, file = cls.headed(folder, block, stamp)
        try:
            log.limit = limit
            for base in log.header.bases:
                log.add_base(base, is_verified=is_verified)
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
            log.end = os.fstat(file).st_size
            at = max(log.end - HEAD_BYTES, 0)
            frame = form.parse_head(log.seed, at, os.pread(file, HEAD_BYTES, at))
            log.read_slot(file)
        finally:
            os.close(file)
        if not log.packed or frame is None or frame.kind != form.SEAL:
            return None
        if not log.slot.serial or log.slot.durable_end > log.end:
            return None
        try:
            for base in log.header.bases:
                file = open_log(folder, base.stamp)
                is_whole = os.fstat(file).st_size >= base.end
                os.close(file)
                if not is_whole:
                    return None
        except FileNotFoundError:
            return None
        length = frame.offset
        return Replica(block, stamp, ReplicaState.SEALED, length, length, log.slot.acknowledged_bytes)

    def has_pen(self) -> bool:
        """Return whether no fence has come; a look at one name costs a fifth of a listing."""
        return os.access(self.name + PEN, os.F_OK)

    def refresh(self) -> bool:
        """Read what was written since; return False if another file has the name now.

        Raises:
            FileNotFoundError: There is no such log any more.
        """
        file = open_log(self.folder, self.header.stamp)
        try:
            if os.pread(file, len(self.packed), 0) != self.packed:
                return False
            self.extend(file)
        finally:
            os.close(file)
        return True

    def add_base(self, base: Base, *, is_verified: bool) -> None:
        """Take the bytes of a log before this one, up to those that are missing or damaged."""
        if self._lacking:
            return
        try:
            log, file = Log.headed(self.folder, self.header.block, base.stamp)
        except FileNotFoundError:
            self._lacking = f"{log_name(self.folder, base.stamp)}: the log is missing"
            return
        try:
            log.limit, log.length_bytes = base.end, log.header.base_bytes
            log.read_slot(file)
            log.scan(file, 0 if is_verified else base.end)
            most = base.length_bytes if log.end == base.end else min(base.length_bytes, log.least(file))
        finally:
            os.close(file)
        for one in log.extents:
            last = min(one.end, most)
            if one.offset <= self.length_bytes < last:
                self.extents.append(one._replace(offset=self.length_bytes, end=last))
                self.length_bytes = last
        self._ends[base.stamp] = log.end
        if log.end != base.end or self.length_bytes != base.length_bytes:
            self._lacking = f"{log.name}: the log is damaged at byte {log.end} of the file"

    def extend(self, file: int, *, is_verified: bool = False) -> None:
        """Read the frames behind those that are known."""
        self._bad, bad = "", -1
        self.read_slot(file)  # before the frames: it must not speak of some that were not read
        while self.packed:
            self.scan(file, 0 if is_verified else self.slot.durable_end)
            durable = max((one.durable_end for one in self._behind(file)), default=0)
            durable = max(durable, self.slot.durable_end, self.limit or 0, self._given_end, self.durable_end)
            self.durable_end = durable
            if durable <= self.end and self.slot.serial:
                if durable < self.end:
                    os.fdatasync(file)  # what is read, or counts for a fence, may be in memory only
                break
            if bad == self.end:
                self._bad = f"{self.name}: the log is damaged at byte {bad} of the file"
                self.cut(min(self.least(file), self.length_bytes))
                break
            bad = self.end  # read once more: it may have been read while it was written
        self.durable_bytes = self.length_bytes
        cuts = [cut for position, cut in self._cuts if position >= self.slot.durable_end]
        self.acknowledged_bytes = min(self.slot.acknowledged_bytes, *cuts, form.NEVER_CUT)
        if self.acknowledged_bytes > self.length_bytes and not self.damage:
            self._bad = f"{self.name}: all members have had {self.acknowledged_bytes} bytes"

    def read_slot(self, file: int) -> None:
        """Read the newest slot. A log that was cut before its frames has none: the newer one may be lost."""
        sectors = os.pread(file, SLOTS_BYTES, len(self.packed))
        if len(sectors) == SLOTS_BYTES:
            self.slot = max(self.slot, form.newest_slot(self.seed, sectors))

    def _behind(self, file: int) -> list[Frame]:
        """Return the intact heads behind the first frame that is not intact."""
        size = (os.fstat(file).st_size if self.limit is None else self.limit) - self.end
        return form.heads_behind(self.seed, os.pread(file, size, self.end), self.end) if size > 0 else []

    def least(self, file: int) -> int:
        """Return the length below which no frame that is damaged can have cut the replica."""
        known = self.slot.lowest_cut if self.slot.serial else 0
        return min(known, *(one.lowest_cut for one in self._behind(file)), form.NEVER_CUT)

    def scan(self, file: int, verified_from: int) -> None:
        """Take the intact frames from `end` on; the bytes of those before a position are not read."""
        window, begin, span = memoryview(b""), self.end, _HEADS_BYTES
        limit = os.fstat(file).st_size if self.limit is None else self.limit
        while (room := limit - self.end - HEAD_BYTES) >= 0:
            at = self.end - begin
            if at + HEAD_BYTES > len(window):
                if window:  # of small frames the next ones are read, too
                    span = min(4 * span, SPAN_BYTES) if at < 2 * span else _HEADS_BYTES
                window, begin, at = memoryview(os.pread(file, span, self.end)), self.end, 0
            frame = form.parse_head(self.seed, self.end, window[at : at + HEAD_BYTES])
            if frame is None or frame.size > room or (frame.offset > self.length_bytes and not self._lacking):
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
        offset = frame.offset
        if frame.kind != form.DATA:
            self._cuts.append((self.end, offset))
        if frame.kind == form.TRIM:
            self.cut(min(offset, self.length_bytes))
        elif frame.kind != form.DATA:
            self.state = ReplicaState.SEALED if frame.kind == form.SEAL else ReplicaState.WRITING
            self._mark = ""  # its length was chosen in spite of the damage
        elif offset <= self.length_bytes:  # else what is before it is lacking
            if offset < self.length_bytes:
                self.cut(offset)
            self.length_bytes = offset + frame.size
            position, stamp = self.end + HEAD_BYTES, self.header.stamp
            self.extents.append(
                Extent(offset, self.length_bytes, position, offset, frame.size, frame.checksum, stamp)
            )
        self.end += HEAD_BYTES + frame.size
        self.durable_end = max(self.durable_end, frame.durable_end)

    def cut(self, length_bytes: int) -> None:
        """Drop the bytes behind a length."""
        self.extents.cut(length_bytes)
        self.length_bytes = length_bytes

    def as_bases(self) -> list[Base]:
        """Return the logs whose bytes stand, for one that continues them: those that they call durable."""
        own = self.header.stamp
        ends = {**self._ends, own: min(self.end, self.durable_end)}
        durable = (one for one in self.extents if one.stamp != own or one.frame_end <= self.durable_end)
        lengths = {one.stamp: one.end for one in durable}
        return [Base(stamp, ends[stamp], length) for stamp, length in lengths.items()]

    def read(self, offset: int, size: int) -> bytes:
        """Return durable bytes whose checksums hold; fewer than `size` only at their end.

        Raises:
            MalformedRecordError: They are damaged, or would be behind the damage.
        """
        if self.damage and offset + size > self.length_bytes:
            raise MalformedRecordError(f"{self.damage}; only the {self.length_bytes} bytes before are intact")
        return self.received(offset, min(size, self.durable_bytes - offset))

    def received(self, offset: int, size: int) -> bytes:
        """Return bytes, durable or not, whose checksums hold."""
        if offset < 0:
            raise InvalidInputError(f"{self.name}: the offset {offset} is negative")
        extents, found, end = self.extents, list[bytes | memoryview](), offset + size
        at = extents.find(offset)
        while offset < end:
            near = [first := extents[at]]
            while (
                near[-1].end < end
                and (one := extents[at + len(near)]).stamp == first.stamp
                and one.frame_end - first.position <= SPAN_BYTES
            ):
                near.append(one)
            for one, data in self._frames(near):
                begin, last = offset - one.frame_offset, min(end, one.end) - one.frame_offset
                found.append(data if (begin, last) == (0, len(data)) else memoryview(data)[begin:last])
                offset = one.frame_offset + last
            at += len(near)
        return b"".join(found)

    def _frames(self, extents: list[Extent]) -> list[tuple[Extent, bytes | memoryview]]:
        """Return the bytes of frames that are near to each other in one log."""
        first, last = extents[0], extents[-1]
        name = log_name(self.folder, first.stamp)
        try:
            file = open_log(self.folder, first.stamp)
        except FileNotFoundError:
            raise MalformedRecordError(f"{name}: the log is missing") from None
        try:
            data = os.pread(file, last.frame_end - first.position, first.position)
        finally:
            os.close(file)
        found: list[tuple[Extent, bytes | memoryview]] = [(first, data)]
        if len(extents) > 1:
            view = memoryview(data)
            found = [(one, view[one.position - first.position :][: one.frame_size]) for one in extents]
        for one, piece in found:
            if len(piece) < one.frame_size or crc32c(piece, 0) != one.checksum:
                raise MalformedRecordError(f"{name}: the checksum of the bytes at {one.offset} does not hold")
        return found

    def append(self, offset: int, data: bytes) -> int:
        """Compare bytes that stand already. All changes are refused: another process writes the log."""
        if self._new_bytes(offset, data):
            raise self._is_made_elsewhere()
        return self.length_bytes

    def flush(self) -> int:
        """Return the length of a sealed replica."""
        if self.state is ReplicaState.WRITING:
            raise self._is_made_elsewhere()
        return self.length_bytes

    def trim(self, length_bytes: int) -> None:
        """Refuse another length."""
        if length_bytes != self.length_bytes:
            raise self._is_made_elsewhere()

    def finish(self, length_bytes: int, state: ReplicaState) -> None:
        """Refuse another length or state."""
        if (length_bytes, state) != (self.length_bytes, self.state) or self.damage:
            raise self._is_made_elsewhere()

    def _is_made_elsewhere(self) -> ConflictError:
        return ConflictError(
            f"{self.name}: the replica is {self.state} with {self.length_bytes} bytes, and another process "
            "has made its log; nothing was changed; fence it at a newer stamp"
        )

    def _new_bytes(self, offset: int, data: bytes) -> bytes:
        """Return what an append would add.

        Raises:
            InvalidInputError: It leaves a gap, or other bytes stand there.
            ConflictError: The log is sealed.
        """
        if self.state is not ReplicaState.WRITING:
            raise ConflictError(f"{self.name}: the replica is {self.state}; it takes no appends")
        length = self.length_bytes
        stands = self.received(offset, min(len(data), length - offset)) if offset < length else b""
        if offset > length or data[: len(stands)] != stands:
            raise InvalidInputError(
                f"{self.name}: the replica has {length} bytes; {len(data)} bytes at {offset} leave a gap or "
                "differ from those that stand; append at its length"
            )
        return data[len(stands) :]
