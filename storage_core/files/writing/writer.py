"""A file-like writer of an appendable file: for `csv`, `json` lines, `logging` and Arrow streams."""

from __future__ import annotations

import io
import threading
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

import msgspec

from lockgate.storage_core.errors import FencedError, InvalidInputError, LockgateError, OutcomeUnknownError
from lockgate.storage_core.files.blocks import BlockRecord, naming
from lockgate.storage_core.files.namespace.journal_blocks import JournalBlocks
from lockgate.storage_core.files.reseal import reseal
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId
from lockgate.storage_core.files.volumes.replica import ReplicaState
from lockgate.storage_core.files.writing.pipeline import Pipeline
from lockgate.storage_core.forks import ForkGuard

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

T = TypeVar("T")

_INTERRUPTED: Final = (
    "an earlier call of this writer was interrupted, as by Ctrl-C or a time limit; this one changed nothing; "
    "what was flushed is durable; open the file again to append: it is recovered once its lease has lapsed"
)

BLOCK_BYTES: Final = 64 * 1024 * 1024
REOPENED_BYTES: Final = 8 * 1024 * 1024
"""Length from which the last block of a file is not opened to appends again: a fence copies a block."""
SEND_BYTES: Final = 1024 * 1024
"""Bytes that are gathered before they are sent."""
THREADS: Final = "lockgate-pipeline"
"""Prefix of the names of threads that call the members of a block."""
KEPT_BYTES: Final = BLOCK_BYTES + SEND_BYTES
"""Bytes that are kept to be sent again; then the writer flushes by itself, if a full block was not sealed."""


class FileWriter(io.BufferedIOBase):
    """Appends to a file; `flush` returns when all bytes are durable on all members of the last block.

    A process that takes the file's lease over fences this writer: its next flush raises `FencedError`.
    Threads may share a writer. A fork may not: there each write and flush raises `FencedError`, and a close
    leaves the file to the parent.

    A signal handler that raises within a call, as at Ctrl-C or a time limit, ends the writer as a crash does:
    what was flushed before is durable, and of later bytes the first ones may be. Each later call raises
    `FencedError`, and recovery closes the file once its lease has lapsed.
    """

    def __init__(
        self,
        blocks: JournalBlocks,
        volumes: Mapping[VolumeId, Volume],
        *,
        path: str = "the file",
        block_bytes: int = BLOCK_BYTES,
        check: Callable[[], object] = lambda: None,
        drop: Callable[[], object] = lambda: None,
    ) -> None:
        """Open the end of the file: an earlier writer is fenced, and its last block is resealed.

        Args:
            block_bytes: Length of a full block.
            check: Raises `FencedError` if the lease is known to be lost.
            drop: Lets the lease lapse, once the writer has ended or nothing refers to it.

        Raises:
            InvalidInputError: `block_bytes` is not positive.
            StoreUnavailableError: Too few members of the last block answered.
        """
        if block_bytes < 1:
            raise InvalidInputError(f"block_bytes={block_bytes}: give a number of bytes, at least 1")
        self._blocks = blocks
        self._volumes = volumes
        self._path = path
        self._block_bytes = block_bytes
        self._check_lease = check
        self._drop_lease = weakref.finalize(self, drop)
        self._drop_lease.atexit = False  # `logging` flushes and closes later
        self._guard = ForkGuard("the writer of a file", remedy="write in that process, or a file of your own")
        self._lock = threading.RLock()
        self._is_in_call = False
        self._is_interrupted = False
        self._threads = ThreadPoolExecutor(thread_name_prefix=THREADS)
        self._pipeline: Pipeline | None = None
        self._has_ended = False
        self._left = b""
        end = blocks.end()
        last = end.last
        self._added = last if end.is_added else None
        self._sealed: BlockRecord | None = None
        self._before_bytes = end.before_bytes
        if last is None or end.is_added:
            return
        if not last.is_settled or last.length_bytes < min(block_bytes, REOPENED_BYTES):
            last = reseal(blocks, volumes, last.block, ends=ReplicaState.WRITING)
            if last.members:
                self._pipeline = Pipeline(blocks, volumes, last, self._threads)
        else:
            self._before_bytes += last.length_bytes

    def writable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the length of the file, with the bytes that were not sent yet."""
        return self._in_turn(self._tell)

    def _tell(self) -> int:
        self._check_open()
        return self._before_bytes + (self._pipeline.length_bytes if self._pipeline else 0) + len(self._left)

    def write(self, data: ReadableBuffer, /) -> int:
        """Append bytes; they are kept or sent, and durable after the next `flush`.

        Raises:
            FencedError: Another process writes the file now, or an earlier call was interrupted.
            StoreUnavailableError: No member could be kept; the bytes are kept, and the next call tries again.
        """
        view = memoryview(data).cast("B")
        return self._in_turn(lambda: self._write(data, view))

    def _write(self, data: ReadableBuffer, rest: memoryview) -> int:
        self._check_open()
        size = len(rest)
        if self._left:  # by a call that found no room
            data = rest = memoryview(b"".join((self._left, rest)))
        try:
            while rest:
                pipeline = self._with_room()
                taken = rest[: self._block_bytes - pipeline.length_bytes]
                pipeline.append(data if isinstance(data, bytes) and len(taken) == size else taken)
                rest = rest[len(taken) :]
                if pipeline.unflushed_bytes >= KEPT_BYTES:
                    pipeline.flush()
                elif pipeline.unsent_bytes >= SEND_BYTES:
                    pipeline.send()
        finally:
            self._left = bytes(rest)
        return size

    def flush(self) -> None:
        """Make all bytes durable on all members; raises as `write` does."""
        if self.closed:
            raise ValueError("the writer is closed")
        if not self._has_ended:
            self._in_turn(self._flush)

    def _flush(self) -> None:
        if self._has_ended:
            return  # meanwhile, by another thread
        self._check_lease()
        if self._left:
            self._write(b"", memoryview(b""))
        if self._pipeline is not None:
            self._pipeline.flush()

    def close(self) -> None:
        """Seal the last block, close the file and give its lease back.

        After an error the file is left to the recovery of its lease, and the writer is closed nevertheless.
        """
        try:
            if not self._guard.is_this:
                self._end()
            elif self._is_interrupted and not self._has_ended:
                self._end()
                raise FencedError(_INTERRUPTED)
            elif not self._has_ended:
                self._in_turn(self._close)
        finally:
            self._drop_lease()

    def _close(self) -> None:
        if self._has_ended:
            return  # meanwhile, by another thread
        try:
            self._write(b"", memoryview(b""))
            last = self._added
            if self._pipeline is not None:
                last = self._pipeline.seal()
            elif last is not None:
                last = msgspec.structs.replace(last, members=(), state=ReplicaState.SEALED)
            try:
                self._blocks.close(last)
            except OutcomeUnknownError:
                self._blocks.close(last)
        finally:
            self._end()

    def _end(self) -> None:
        self._pipeline = None
        self._has_ended = True  # `io` flushes once more, when the lease is given back
        self._threads.shutdown(wait=False)  # an interrupted call may have left some at work
        super().close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the writer; what interrupted one of its calls is not hidden by the error of the close."""
        try:
            self.close()
        except FencedError:
            if error is None or not self._is_interrupted:
                raise

    def __reduce__(self) -> NoReturn:
        """Raise `TypeError`: a file has one writer, which no copy and no other process can use."""
        raise TypeError("a writer cannot be copied or pickled: close it, and open the file there")

    def __del__(self) -> None:
        """Leave a file that was not closed to the recovery of its lease: an error may be why."""

    def _with_room(self) -> Pipeline:
        if self._pipeline is not None and self._pipeline.length_bytes >= self._block_bytes:
            self._sealed = self._pipeline.seal()
            self._before_bytes += self._sealed.length_bytes
            self._pipeline = None
        if self._pipeline is None:
            record = self._added or self._blocks.add(self._sealed)
            self._added = self._sealed = None
            self._pipeline = Pipeline(self._blocks, self._volumes, record, self._threads)
            self._pipeline.create()
        return self._pipeline

    def _check_open(self) -> None:
        if self._has_ended:
            raise ValueError("the writer is closed")

    def _in_turn(self, call: Callable[[], T]) -> T:
        """Make a call that no other one is beside; one that is interrupted is the last one."""
        self._guard.check()
        with self._lock, naming(self._path):
            if self._is_interrupted:
                raise FencedError(_INTERRUPTED)
            if self._is_in_call:
                raise RuntimeError("a signal handler or a destructor used the writer within one of its calls")
            self._is_in_call = True
            try:
                return call()
            except (LockgateError, ValueError):
                raise
            except BaseException:
                self._is_interrupted = True
                self._drop_lease()
                raise
            finally:
                self._is_in_call = False
