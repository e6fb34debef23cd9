"""One replica in a directory: its header, its log, and what is known of them in this process."""

from __future__ import annotations

import os
from bisect import bisect_right
from contextlib import suppress
from pathlib import Path
from typing import Final
from weakref import WeakSet

from lockgate.storage_core.errors import (
    ConflictError,
    InvalidInputError,
    MalformedRecordError,
    StoreUnavailableError,
)
from lockgate.storage_core.files.volumes.disk import Disk
from lockgate.storage_core.files.volumes.replica import BlockId, Replica, ReplicaState
from lockgate.storage_core.files.volumes.replica_format import (
    FRAME,
    VERSION,
    Extent,
    Header,
    check_frame,
    extend,
    frames,
    pack_frame_head,
    pack_header,
    parse_header,
)
from lockgate.storage_core.stamp import Stamp

_LARGE_BYTES: Final = 64 * 1024
"""Size from which the bytes of a frame are read and written apart from its head, which saves a copy, and from
which the system begins to write them at once."""

_MOST_AHEAD_BYTES: Final = 64 * 1024
"""Most zeros that are written behind a small frame, for the next ones: a sync that does not lengthen the file
takes two thirds of the time."""

_KEPT_OPEN: Final = 128
"""Logs that a process keeps open while they are written: to open one costs a third of a small flush."""
_open_logs: Final[WeakSet[LocalReplica]] = WeakSet()


class LocalReplica:
    """A replica; its volume calls it under the replica's lock."""

    def __init__(self, path: Path, disk: Disk, header: Header) -> None:
        self.header = header
        self.name = str(path)
        self._path = path
        self._log_name = str(path.with_suffix(".log"))
        self._disk = disk
        self._extents: list[Extent] = []
        self._end = 0  # of the log, in bytes
        self._durable = 0
        self._sync_failed = False
        self._has_tail = True  # unless this process knows better
        self._zeros_end = 0  # of the log: what is between the intact frames and this is zeros
        self._kept: int | None = None
        self._is_changing = False

    @property
    def is_in_doubt(self) -> bool:
        """Return whether a change was interrupted: the replica is to be loaded again, as after a crash.

        Not after a sync that failed: the log shows nothing of that.
        """
        return self._is_changing and not self._sync_failed

    @classmethod
    def create(cls, path: Path, disk: Disk, block: BlockId, stamp: Stamp) -> LocalReplica:
        """Create an empty replica: it exists once its header does."""
        opened = os.open(path.with_suffix(".log"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            disk.truncate(opened, 0)  # of a replica that was deleted halfway
            disk.sync(opened)
        finally:
            os.close(opened)
        replica = cls(path, disk, Header(VERSION, block, stamp, ReplicaState.WRITING, 0))
        replica._store(replica.header)
        return replica

    @classmethod
    def load(cls, path: Path, disk: Disk) -> LocalReplica | None:
        """Load a replica that no call has finished since; one that was being written is suspect."""
        try:
            header = _read_header(path)
        except FileNotFoundError:
            return None
        replica = cls(path, disk, header)
        if header.version == 0:
            replica._store(header._replace(version=1))
        replica._scan()
        return replica

    @classmethod
    def look(cls, path: Path, disk: Disk) -> LocalReplica | None:
        """Read a replica that another process owns, and change nothing."""
        try:
            header = _read_header(path)
        except FileNotFoundError:
            return None
        replica = cls(path, disk, header)
        replica._read_log()
        if header.state is ReplicaState.SUSPECT and header.length_bytes < replica.length_bytes:
            extend(replica._extents, header.length_bytes, 0, 0)
        replica._durable = replica.length_bytes
        return replica

    @classmethod
    def outline(cls, path: Path) -> Replica | None:
        """Return a sealed replica by its header and the size of its log; None if more must be read."""
        try:
            header = _read_header(path)
        except FileNotFoundError:
            return None
        length = header.length_bytes
        if header.state is not ReplicaState.SEALED or _log_bytes(path) < length + FRAME.size * bool(length):
            return None
        return Replica(header.block, header.stamp, header.state, length, length)

    def exists(self) -> bool:
        """Return whether header and log are in the directory: someone may have removed them."""
        return self._path.with_suffix(".head").exists() and _log_bytes(self._path) >= 0

    def has_more(self) -> bool:
        """Return whether its owner, another process, has begun a frame behind those that are known."""
        if self.header.state is not ReplicaState.WRITING:
            return False
        with self._log(os.O_RDONLY) as log:
            return any(os.pread(log, FRAME.size, self._end))

    def _read_log(self) -> None:
        log = self._path.with_suffix(".log").read_bytes()
        for offset, size, position in frames(self.header, log):
            extend(self._extents, offset, size, position)
            self._end = position + FRAME.size + size

    def _scan(self) -> None:
        self._read_log()
        state, limit = self.header.state, self.header.length_bytes
        if state is ReplicaState.SUSPECT and limit < self.length_bytes:
            self._write(limit, b"")  # bytes after a failed sync do not come back
        if state is ReplicaState.WRITING or (state is ReplicaState.SEALED and self.length_bytes != limit):
            self.header = self.header._replace(state=ReplicaState.SUSPECT, length_bytes=self.length_bytes)
        with self._log(os.O_RDWR) as log:
            self._disk.sync(log)  # what was read may be in memory only
        self._durable = self.length_bytes

    @property
    def length_bytes(self) -> int:
        """Return the number of bytes received."""
        return self._extents[-1].offset + self._extents[-1].size if self._extents else 0

    @property
    def frame_count(self) -> int:
        """Return the number of frames that are known."""
        return len(self._extents)

    @property
    def is_stored(self) -> bool:
        """Whether the replica is sealed with all its bytes: a load finds it as it is."""
        is_sealed = self.header.state is ReplicaState.SEALED
        return is_sealed and self.header.length_bytes == self.length_bytes == self._durable

    def view(self) -> Replica:
        """Return the replica as the protocol has it."""
        header = self.header
        return Replica(header.block, header.stamp, header.state, self.length_bytes, self._durable)

    def append(self, offset: int, data: bytes) -> int:
        """Append bytes; those that stand already are compared."""
        if self.header.state is not ReplicaState.WRITING:
            raise ConflictError(f"{self._path}: the replica is {self.header.state}; it takes no appends")
        length = self.length_bytes
        stands = self._bytes(offset, min(len(data), length - offset)) if offset < length else b""
        if offset > length or data[: len(stands)] != stands:
            raise InvalidInputError(
                f"{self._path}: the replica has {length} bytes; {len(data)} bytes at {offset} leave a gap "
                "or differ from those that stand; append at its length"
            )
        if data[len(stands) :]:
            self._write(offset + len(stands), data[len(stands) :])
        return self.length_bytes

    def flush(self) -> int:
        """Make all bytes durable; a sync that fails is never tried again."""
        self._refuse_failed()
        if self._durable < self.length_bytes:
            self._sync()
        return self._durable

    def read(self, offset: int, size: int) -> bytes:
        """Return durable bytes."""
        return self._bytes(offset, min(size, self._durable - offset))

    def fence(self, stamp: Stamp) -> None:
        """Take a newer stamp durably."""
        if stamp != self.header.stamp:
            self._store(self.header._replace(stamp=stamp))

    def trim(self, length_bytes: int) -> None:
        """Cut the replica durably."""
        self._refuse_failed()
        if length_bytes > self.length_bytes or length_bytes < 0:
            raise ConflictError(f"{self._path}: {self.length_bytes} bytes cannot be cut to {length_bytes}")
        if length_bytes < self.length_bytes:
            self._write(length_bytes, b"")
            self._sync()

    def finish(self, length_bytes: int, state: ReplicaState) -> None:
        """Seal the replica or open it to appends, durably with its bytes."""
        self._refuse_failed()
        if length_bytes != self.length_bytes:
            raise ConflictError(
                f"{self._path}: the replica has {self.length_bytes} bytes, not {length_bytes}"
            )
        with self._log(os.O_RDWR) as log:
            self._cut_tail(log, only_zeros=True)  # intact frames may stand behind a damaged one
        self._sync()
        self._store(self.header._replace(state=state, length_bytes=length_bytes))

    def delete(self) -> None:
        """Delete the replica: it is gone once its header is.

        Its log is emptied before: a crash then leaves one that takes no space.
        """
        self._is_changing = True  # for good: a part of it is loaded again
        with suppress(FileNotFoundError), self._log(os.O_RDWR) as log:
            self._disk.truncate(log, 0)
        self._disk.unlink(self._path.with_suffix(".head"))
        self._disk.sync_directory(self._path.parent)
        self._disk.unlink(self._path.with_suffix(".log"))
        self.release()

    def release(self) -> None:
        """Close the log, if it was kept open."""
        kept, self._kept = self._kept, None
        if kept is not None:
            _open_logs.discard(self)
            os.close(kept)

    def __del__(self) -> None:
        """Close the log of a volume that was not closed."""
        self.release()

    def _store(self, header: Header) -> None:
        self.release()
        self._is_changing = True
        try:
            self._disk.store(self._path.with_suffix(".head"), pack_header(header))
        except OSError:
            self._is_changing = False
            raise
        self.header, self._is_changing = header, False

    def _log(self, mode: int) -> _OpenLog:
        return _OpenLog(self._log_name, mode, self._kept)

    def _write(self, offset: int, data: bytes) -> None:
        """Write a frame at the end of the intact log; one that fails halfway is overwritten by the next."""
        if self._kept is None and self.header.state is ReplicaState.WRITING and len(_open_logs) < _KEPT_OPEN:
            self._kept = os.open(self._log_name, os.O_RDWR | os.O_CLOEXEC)
            _open_logs.add(self)
        self._is_changing = True
        try:
            with self._log(os.O_RDWR) as log:
                self._write_frame(log, offset, data)
        except OSError:
            self._has_tail, self._is_changing = True, False
            raise
        extend(self._extents, offset, len(data), self._end)
        self._end += FRAME.size + len(data)
        self._durable = min(self._durable, offset)
        self._has_tail = self._is_changing = False

    def _write_frame(self, log: int, offset: int, data: bytes) -> None:
        if self._has_tail:
            self._cut_tail(log)
        head = pack_frame_head(self.header, offset, data)
        if len(data) < _LARGE_BYTES:
            self._disk.write(log, head + data, self._end)
            self._write_zeros(log, self._end + FRAME.size + len(data))
        else:
            self._disk.write(log, head, self._end)
            self._disk.write(log, data, self._end + FRAME.size)
            self._disk.begin_sync(log, self._end, FRAME.size + len(data))

    def _write_zeros(self, log: int, end: int) -> None:
        """Write zeros behind a frame, as many as are before it, if those of an earlier one are used up.

        A disk that has no room for them has taken the frame. A block in whose log they would be a trim gets
        none.
        """
        if end <= self._zeros_end or not any(pack_frame_head(self.header, 0, b"")):
            return
        zeros = bytes(min(self._end, _MOST_AHEAD_BYTES))
        with suppress(OSError):
            self._disk.write(log, zeros, end)
            self._zeros_end = end + len(zeros)

    def _cut_tail(self, log: int, *, only_zeros: bool = False) -> None:
        """Cut what is behind the intact frames: zeros, and unless only those, also what is damaged."""
        self._zeros_end = 0
        size = os.fstat(log).st_size - self._end
        if size <= 0:
            return
        if only_zeros and (size > _MOST_AHEAD_BYTES or any(os.pread(log, size, self._end))):
            return
        self._disk.truncate(log, self._end)

    def _sync(self) -> None:
        try:
            with self._log(os.O_RDWR) as log:
                self._disk.sync(log)
        except OSError as error:
            if error.errno is None:
                raise  # of a signal handler, such as the `TimeoutError` of a time limit
            self._sync_failed = True
            suspect = self.header._replace(state=ReplicaState.SUSPECT, length_bytes=self._durable)
            extend(self._extents, self._durable, 0, 0)
            self.header = suspect
            with suppress(OSError):
                self._store(suspect)
            raise
        self._durable = self.length_bytes

    def _refuse_failed(self) -> None:
        if self._sync_failed:
            raise ConflictError(f"{self._path}: a sync of the replica failed; copy it from another volume")

    def _bytes(self, offset: int, size: int) -> bytes:
        if offset < 0:
            raise InvalidInputError(f"{self._path}: the offset {offset} is negative")
        found: list[bytes | memoryview] = []
        at = max(bisect_right(self._extents, offset, key=lambda extent: extent.offset) - 1, 0)
        with self._log(os.O_RDONLY) as log:
            while size > 0:
                if at == len(self._extents):
                    raise StoreUnavailableError(f"{self._path}: fewer bytes than its length")
                extent = self._extents[at]
                data = self._frame(log, extent)
                begin = offset - extent.offset
                end = min(begin + size, extent.size)
                piece = data if (begin, end) == (0, len(data)) else memoryview(data)[begin:end]
                found.append(piece)
                offset, size, at = offset + len(piece), size - len(piece), at + 1
        return b"".join(found)

    def _frame(self, log: int, extent: Extent) -> bytes | memoryview:
        """Return the bytes of a frame once their checksum holds."""
        size = extent.frame_size
        head: bytes | memoryview
        data: bytes | memoryview
        if size < _LARGE_BYTES:
            frame = memoryview(os.pread(log, FRAME.size + size, extent.position))
            head, data = frame[: FRAME.size], frame[FRAME.size :]
        else:
            head = os.pread(log, FRAME.size, extent.position)
            data = os.pread(log, size, extent.position + FRAME.size)
        check_frame(self.header, head, data, extent, self.name)
        return data


class _OpenLog:
    """The log of a replica, open for one call; one that is kept open stays so.

    No generator: it would cost as much as a write of 1 KiB.
    """

    __slots__ = ("_kept", "_mode", "_name", "_opened")

    def __init__(self, name: str, mode: int, kept: int | None) -> None:
        self._name = name
        self._mode = mode
        self._kept = kept

    def __enter__(self) -> int:
        if self._kept is not None:
            return self._kept
        self._opened = os.open(self._name, self._mode | os.O_CLOEXEC)
        return self._opened

    def __exit__(self, *_: object) -> None:
        if self._kept is None:
            os.close(self._opened)


def _read_header(path: Path) -> Header:
    """Read the header of a replica; one of another block is damaged: its files were renamed."""
    header = parse_header(path.with_suffix(".head").read_bytes(), str(path))
    if str(header.block) != path.name.lstrip("0"):
        raise MalformedRecordError(
            f"{path}: the replica's header is that of block {header.block}; it is not served"
        )
    return header


def _log_bytes(path: Path) -> int:
    try:
        return path.with_suffix(".log").stat().st_size
    except FileNotFoundError:
        return -1
