"""A log that this process has made, and is the only one to write."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, Self
from weakref import WeakSet

from lockgate.storage_core.errors import ConflictError, FencedError, InvalidInputError
from lockgate.storage_core.files.checksums import crc32c
from lockgate.storage_core.files.volumes.directory import log_format as form
from lockgate.storage_core.files.volumes.directory.log import PEN, SLOTS_BYTES, SPAN_BYTES, Log
from lockgate.storage_core.files.volumes.directory.log_format import HEAD_BYTES, Frame, Header, Slot
from lockgate.storage_core.files.volumes.disk import Disk
from lockgate.storage_core.files.volumes.replica import ReplicaState

_LARGE_BYTES: Final = 64 * 1024
"""Size from which the system begins to write the bytes of frames before a sync, and no zeros follow them."""
_BEGUN_BYTES: Final = 4 * 1024 * 1024
"""Bytes of large frames that it begins to write at once."""
_MOST_AHEAD_BYTES: Final = 64 * 1024
"""Most zeros that are written behind a small frame, for the next ones: a sync that does not lengthen the file
takes two thirds of the time."""
_KEPT_OPEN: Final = 128
"""Logs that a process keeps open while they are written: to open one costs a third of a small flush."""
_kept_open: Final[WeakSet[LogWriter]] = WeakSet()


class LogWriter(Log):
    """A log and its writer.

    Attributes:
        disk: Calls of the disk.
        is_failed: Whether a write or a sync has failed: the log takes no more.
        is_fenced: Whether the log has lost its name.
    """

    disk: Disk
    is_failed = False
    is_fenced = False
    _file: int | None = None
    _last = (0, b"")
    """Position and head of the last frame: an older copy of the log, put back by hand, has another one."""
    _zeros_end = 0
    _begun_end = 0

    @classmethod
    def begin(
        cls, path: Path, disk: Disk, of: tuple[str, Header], pieces: Iterable[bytes] = (), known: int = 0
    ) -> Self:
        """Write a log with its first bytes durably, and return its writer; the caller gives it its name.

        Args:
            path: Path of the empty file.
            disk: Calls of the disk.
            of: Folder of the block, and the header.
            pieces: The bytes.
            known: How many all members have had: more than there are, if some are lost.
        """
        log = cls(*of, form.pack_header(of[1]))
        log.disk = disk
        log._file = file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        disk.write(file, 0, log.packed, bytes(SLOTS_BYTES))
        for piece in pieces:
            log._write(form.DATA, log.length_bytes, piece)
        log.acknowledged_bytes = known
        log.sync()
        return log

    def seal(self) -> None:
        """Write that no appends follow, without the zeros; not durably."""
        self.disk.truncate(self._opened(), self.end)
        self._write(form.SEAL, self.length_bytes, b"")

    def sync(self) -> None:
        """Make a log durable that has no name yet, with both slots."""
        self.durable_end, self.durable_bytes = self.end, self.length_bytes
        self._write_slots()
        self.disk.sync(self._opened())

    def append(self, offset: int, data: bytes) -> int:
        """Append bytes; those that stand already are compared."""
        self._refuse_failed()
        if offset != self.length_bytes:
            data = self._new_bytes(offset, data)
        for at in range(0, len(data), SPAN_BYTES):  # a reader checks each frame whole
            piece = data if len(data) <= SPAN_BYTES else memoryview(data)[at : at + SPAN_BYTES]
            self._write(form.DATA, self.length_bytes, piece)
        self._put_away()
        return self.length_bytes

    def _new_bytes(self, offset: int, data: bytes) -> bytes:
        """Return what an append would add."""
        length = self.length_bytes
        stands = self.received(offset, min(len(data), length - offset)) if offset < length else b""
        if offset > length or data[: len(stands)] != stands:
            raise InvalidInputError(
                f"{self.name}: the replica has {length} bytes; {len(data)} bytes at {offset} leave a gap or "
                "differ from those that stand; append at its length"
            )
        return data[len(stands) :]

    def flush(self) -> int:
        """Make all bytes durable, then look whether they have still their name: else a fence has missed them.

        A sync that fails is never tried again.

        Raises:
            FencedError: The log was fenced or deleted.
        """
        self._refuse_failed()
        file = self._opened()
        if self.durable_end < self.end:
            self.is_failed = True
            self.disk.sync_data(file)
            self.is_failed = False
        there = self._at_name(os.O_RDONLY)
        try:  # no `fstat`: since Linux 6.13 a write after it notes a new time, which costs a third of a sync
            for position, data in ((0, self.packed), self._last):
                if os.pread(there, len(data), position) != data:
                    raise self._fenced()
        finally:
            os.close(there)
        self.durable_end, self.durable_bytes = self.end, self.length_bytes
        self._put_away()
        return self.length_bytes

    def finish(self, length_bytes: int, state: ReplicaState) -> None:
        """Seal the replica or open it to appends, durably with its bytes."""
        self._refuse_failed()
        if length_bytes != self.length_bytes:
            raise ConflictError(f"{self.name}: the replica has {self.length_bytes} bytes, not {length_bytes}")
        self.acknowledged_bytes = min(self.acknowledged_bytes, length_bytes)
        if state is ReplicaState.SEALED:
            self.seal()
        elif self.damage:
            self._write(form.OPEN, length_bytes, b"")
        self.flush()
        self._write_slots()

    def acknowledge(self, length_bytes: int) -> None:
        """Note what all members have."""
        length_bytes = min(length_bytes, self.durable_bytes)
        if length_bytes > self.acknowledged_bytes and not self.is_failed:
            self.acknowledged_bytes = length_bytes
            self._write_slot()
            self._put_away()

    def release(self) -> None:
        """Close the log's file."""
        file, self._file = self._file, None
        if file is not None:
            _kept_open.discard(self)
            os.close(file)

    def __del__(self) -> None:
        """Close the log of a volume that was not closed."""
        self.release()

    def _opened(self) -> int:
        """Return the open log."""
        if self._file is None:
            self._file = self._at_name(os.O_RDWR)
            if os.pread(self._file, len(self.packed), 0) != self.packed:
                raise self._fenced()
        return self._file

    def _put_away(self) -> None:
        """Close the log after a call, if the process has too many."""
        if self not in _kept_open:
            if len(_kept_open) < _KEPT_OPEN:
                _kept_open.add(self)
            else:
                self.release()

    def _at_name(self, mode: int) -> int:
        """Open the log by its name as it is now."""
        try:
            return self.disk.open_by_name(self.folder, self.name + PEN, mode)
        except FileNotFoundError:
            raise self._fenced() from None

    def _fenced(self) -> FencedError:
        self.is_fenced = True
        return FencedError(
            f"block {self.header.block}: the log of stamp {self.header.stamp} was fenced or deleted: a newer "
            "writer has the block; stop"
        )

    def _refuse_failed(self) -> None:
        if self.is_failed:
            raise ConflictError(f"{self.name}: a write or a sync failed; fence the replica at a newer stamp")

    def _write(self, kind: int, offset: int, data: bytes | memoryview) -> None:
        """Write a frame at the end.

        One that failed halfway is read back: if it is whole, a fence may have taken it.
        """
        file, size, disk = self._opened(), len(data), self.disk
        frame = Frame(kind, size, offset, self.durable_end, crc32c(data, 0))
        head = form.pack_head(self.seed, self.end, frame)
        self.is_failed = True
        try:
            disk.write(file, self.end, head, data)
            end = self.end + HEAD_BYTES + size
            if size >= _LARGE_BYTES:
                if end - self._begun_end >= _BEGUN_BYTES:
                    disk.begin_sync(file, self._begun_end, end - self._begun_end)
                    self._begun_end = end
            elif kind == form.DATA:
                self._write_zeros(file, end)
        except OSError as error:
            if error.errno is not None:  # else it is a signal handler's
                self.scan(file, 0)
                self.is_failed = False
            raise
        self._last = self.end, head
        self.take(frame)
        self.is_failed = False

    def _write_zeros(self, file: int, end: int) -> None:
        """Write zeros behind a frame, as many as are before it, if those of an earlier one are used up.

        A disk that has no room for them has taken the frame.
        """
        if end > self._zeros_end:
            zeros = bytes(min(self.end, _MOST_AHEAD_BYTES))
            with suppress(OSError):
                self.disk.write(file, end, zeros)
                self._zeros_end = end + len(zeros)

    def _write_slots(self) -> None:
        """Write both slots: none is left from before."""
        self._write_slot()
        self._write_slot()

    def _write_slot(self) -> None:
        """Write the older slot; it becomes durable with a later sync."""
        serial = self.slot.serial + 1
        self.slot = Slot(serial, self.durable_end, self.acknowledged_bytes)
        position = len(self.packed) + serial % 2 * form.SECTOR_BYTES
        self.disk.write(self._opened(), position, form.pack_slot(self.seed, self.slot))
