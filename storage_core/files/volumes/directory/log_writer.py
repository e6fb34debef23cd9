"""A log that this process has made, and is the only one to write."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final, Self
from weakref import WeakSet

from msgspec.structs import replace

from lockgate.storage_core.errors import ConflictError, FencedError
from lockgate.storage_core.files.checksums import crc32c
from lockgate.storage_core.files.volumes.directory import log_format as form
from lockgate.storage_core.files.volumes.directory.log import PEN, SLOTS_BYTES, SPAN_BYTES, Log
from lockgate.storage_core.files.volumes.directory.log_format import HEAD_BYTES, Frame, Header, Slot
from lockgate.storage_core.files.volumes.disk import Disk
from lockgate.storage_core.files.volumes.replica import BlockId, ReplicaState
from lockgate.storage_core.stamp import Stamp

_LARGE_BYTES: Final = 64 * 1024
"""Size from which the system begins to write the bytes of frames before a sync, and no zeros follow them."""
_BEGUN_BYTES: Final = 4 * 1024 * 1024
"""Bytes of large frames that it begins to write at once."""
_MOST_AHEAD_BYTES: Final = 64 * 1024
"""Most zeros that are written behind a small frame, for the next ones: a sync that does not lengthen the file
takes two thirds of the time."""
_MOST_BASES: Final = 256
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
    _zeros_end = 0
    _begun_end = 0

    @classmethod
    def begin(cls, name: tuple[str, BlockId, Stamp], source: Log | None, path: Path, disk: Disk) -> Self:
        """Write the beginning of a log durably, with the last bytes of its source if they are few.

        Args:
            name: Folder, block and stamp.
            source: The log that it continues; None for an empty replica.
            path: Path of the empty file, which is linked to the log's name later.
            disk: Calls of the disk.
        """
        folder, block, stamp = name
        bases, length = (source.as_bases(), source.length_bytes) if source else ([], 0)
        kept = bases[-1].length_bytes if bases else 0
        while bases:
            begins = bases[-2].length_bytes if len(bases) > 1 else 0
            if length - begins > SPAN_BYTES and len(bases) <= _MOST_BASES:
                break
            kept = begins
            bases.pop()
        header = Header(block, stamp, os.urandom(8), tuple(bases), copied_bytes=length - kept)
        if source:
            of = source.header.stamp
            header = replace(header, source=of, source_end=source.end, damage=source.damage)
        log = cls(folder, header, form.pack_header(header))
        log.disk, log.durable_end = disk, log.end
        log._file = file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        disk.write(file, 0, log.packed, bytes(SLOTS_BYTES))
        if source:
            log._ends = {base.stamp: base.end for base in bases}
            log.extents = source.extents.copy()
            log.cut(kept)
            log.acknowledged_bytes = source.acknowledged_bytes
            if kept < length:
                log._write(form.DATA, kept, source.received(kept, length - kept))
        log.durable_end, log.durable_bytes = log.end, log.length_bytes
        log._write_slot()
        disk.sync(file)
        return log

    def append(self, offset: int, data: bytes) -> int:
        """Append bytes; those that stand already are compared."""
        self._refuse_failed()
        if offset != self.length_bytes or self.state is not ReplicaState.WRITING:
            data = self._new_bytes(offset, data)
        if data:
            self._write(form.DATA, self.length_bytes, data)
            self._put_away()
        return self.length_bytes

    def flush(self) -> int:
        """Make all bytes durable, then look whether the log has still its name: else a fence has missed them.

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
        is_same = os.path.samestat(os.fstat(there), os.fstat(file))
        os.close(there)
        if not is_same:
            raise self._fenced()
        self.durable_end, self.durable_bytes = self.end, self.length_bytes
        self._put_away()
        return self.length_bytes

    def trim(self, length_bytes: int) -> None:
        """Cut the replica durably."""
        if not 0 <= length_bytes <= self.length_bytes:
            raise ConflictError(f"{self.name}: {self.length_bytes} bytes cannot be cut to {length_bytes}")
        if length_bytes < self.length_bytes:
            self._refuse_failed()
            self.acknowledged_bytes = min(self.acknowledged_bytes, length_bytes)
            self._write(form.TRIM, length_bytes, b"")
        self._flush_and_tell()

    def finish(self, length_bytes: int, state: ReplicaState) -> None:
        """Seal the replica or open it to appends, durably with its bytes."""
        self._refuse_failed()
        if length_bytes != self.length_bytes:
            raise ConflictError(f"{self.name}: the replica has {self.length_bytes} bytes, not {length_bytes}")
        self.acknowledged_bytes = min(self.acknowledged_bytes, length_bytes)
        is_sealed = state is ReplicaState.SEALED
        if is_sealed:
            self.disk.truncate(self._opened(), self.end)  # the zeros
        if is_sealed or self.damage:
            self._write(form.SEAL if is_sealed else form.OPEN, length_bytes, b"")
        self._flush_and_tell()

    def _flush_and_tell(self) -> None:
        """Make all bytes durable, and write both slots: none is left from before."""
        self.flush()
        self._write_slot()
        self._write_slot()

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
        """Open the log by its name; a client of NFS asks for names again once their folder was opened."""
        try:
            os.close(os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            return os.open(self.name + PEN, mode | os.O_CLOEXEC)
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

    def _write(self, kind: int, offset: int, data: bytes) -> None:
        """Write a frame at the end.

        One that failed halfway is read back: if it is whole, a fence may have taken it.
        """
        file, size, disk = self._opened(), len(data), self.disk
        lowest = min(self.slot.lowest_cut, offset) if kind == form.TRIM else self.slot.lowest_cut
        frame = Frame(kind, size, offset, self.durable_end, lowest, crc32c(data, 0))
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
        self.take(frame)
        self.slot = self.slot._replace(lowest_cut=lowest)
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

    def _write_slot(self) -> None:
        """Write the older slot; it becomes durable with a later sync."""
        serial, lowest = self.slot.serial + 1, self.slot.lowest_cut
        self.slot = Slot(serial, self.durable_end, self.acknowledged_bytes, lowest)
        position = len(self.packed) + serial % 2 * form.SECTOR_BYTES
        self.disk.write(self._opened(), position, form.pack_slot(self.seed, self.slot))
