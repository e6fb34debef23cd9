"""Stream a file into a pending upload, which is not visible before the job commits.

Source: S3A committers, "magic" (streaming into an upload that stays open), in bounded memory.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from contextlib import suppress
from contextvars import copy_context
from types import TracebackType
from typing import TYPE_CHECKING, Final, NoReturn

from lockgate.storage_core.commit.records.pending_set import ColumnStatistics, PendingFile
from lockgate.storage_core.commit.uploads.parquet_footer import TAIL_BYTES, statistics_in_tail
from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.forks import ForkGuard
from lockgate.storage_core.ids import Token
from lockgate.storage_core.stores import Part, Store
from lockgate.storage_core.stores.gathered_bytes import GatheredBytes

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

IN_FLIGHT: Final = 2
"""Parts being sent while the next one is filled; at most three parts are in memory."""
PARTS_A_SIZE: Final = 1000
"""Number of parts after which the part size doubles, if the file's size is not known: so 10,000 parts hold
the largest possible file."""


class PendingFileWriter(io.RawIOBase):
    """A binary file that is written to a pending upload. Closing seals the upload but keeps it pending.

    `write` blocks while two parts are in flight. The upload begins with the first part, so a file that is
    abandoned before leaves nothing behind. Only one thread at a time may write.

    Attributes:
        path: Path below the destination, as the writer gave it.
        key: Final key of the file.
        rows: Number of rows; may be set before `close`. Of a `.parquet` file, by default that of its footer.
        statistics: Statistics by column; as for `rows`.
        sha256: SHA-256 of the bytes; may be set before `close`.
    """

    def __init__(
        self,
        store: Store,
        path: str,
        key: str,
        token: Token,
        *,
        part_bytes: int,
        grows: bool,
        executor: Executor,
        content_type: str | None,
        metadata: Mapping[str, str],
        on_close: Callable[[PendingFile], None],
        process: ForkGuard,
    ) -> None:
        self.path = path
        self.key = key
        self.rows: int | None = None
        self.statistics: dict[str, ColumnStatistics] = {}
        self.sha256: str | None = None
        self._store = store
        self._token = token
        self._part_bytes = max(part_bytes, store.capabilities.min_part_bytes)
        self._grows = grows
        self._executor = executor
        self._content_type = content_type
        self._metadata = metadata
        self._on_close = on_close
        self._process = process
        self._filling = GatheredBytes()
        self._offset = 0
        self._number = 0
        self._upload_id: str | None = None
        self._tail = b""
        self._under_way: deque[Future[Part]] = deque()
        self._parts: list[Part] = []

    def writable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> NoReturn:  # noqa: ARG002 - no position is valid
        """Refuse: the bytes before the end may be sent already.

        Raises:
            UnsupportedOperation: Always.
        """
        raise io.UnsupportedOperation(
            f"{self.path}: a file that is streamed into an upload cannot seek; nothing was changed; open the "
            "job with committer='staging', or write a local file and add it: attempt.add_file(local, path)"
        )

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self._offset + len(self._filling)

    def write(self, data: ReadableBuffer, /) -> int:
        """Write bytes; block while two parts are in flight.

        Raises:
            FencedError: This process is a fork of the one that opened the file, which can still write.
            LockgateError: A part could not be written; the file cannot be used any more.
        """
        self._process.check()
        if self.closed:
            raise ValueError(f"{self.path} is closed")
        view = memoryview(data).cast("B")
        taken = 0
        while taken < len(view):
            piece = view[taken : taken + self.room_bytes]
            self._filling.add(data if isinstance(data, bytes) and len(piece) == len(view) else piece)
            taken += len(piece)
            if not self.room_bytes:
                self._send()
        return len(view)

    @property
    def room_bytes(self) -> int:
        """Number of bytes until a part is full: one piece of so many is sent without a copy."""
        return self._next_part_bytes() - len(self._filling)

    def close(self) -> None:
        """Send the last part and seal the upload; the file is pending from then on.

        Raises:
            FencedError: This process is a fork of the one that opened the file, which can still write.
            LockgateError: A part could not be written; the upload is aborted.
        """
        if self.closed:
            return
        self._process.check()
        try:
            if self._filling or self._number == 0:
                self._send()
            while self._under_way:
                self._collect()
            upload_id = self._upload_id or ""
            with step("task-write"):
                upload = self._store.seal_upload(self.key, upload_id, self._token, self._parts)
        except BaseException:
            self.abort()
            raise
        super().close()
        self._read_footer()
        self._on_close(
            PendingFile(
                path=self.path,
                upload=upload,
                rows=self.rows,
                sha256=self.sha256,
                statistics=self.statistics,
            )
        )

    def _read_footer(self) -> None:
        if self.statistics or not self.path.endswith(".parquet"):
            return
        if (found := statistics_in_tail(self._tail, self.path)) is not None:
            rows, self.statistics = found
            self.rows = rows if self.rows is None else self.rows

    def abort(self) -> None:
        """Abort the upload; idempotent. An upload that cannot be aborted now is swept at the job's end."""
        if self.closed:
            return
        super().close()
        if not self._process.is_this:
            return  # the upload and the threads that send its parts belong to the parent process
        for part in self._under_way:
            part.cancel()
        for part in self._under_way:
            with suppress(LockgateError):
                if not part.cancelled():
                    part.result()  # a part stored after the abort would stay
        self._filling.clear()
        if self._upload_id is not None:
            with suppress(LockgateError):
                self._store.abort_upload(self.key, self._upload_id)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abort()

    def __del__(self) -> None:
        # RawIOBase would close, and so seal, an incomplete file.
        if hasattr(self, "_under_way"):
            self.abort()

    def _next_part_bytes(self) -> int:
        return int(self._part_bytes << (self._number // PARTS_A_SIZE if self._grows else 0))

    def _send(self) -> None:
        if self._upload_id is None:
            with step("task-write"):
                self._upload_id = self._store.begin_upload(
                    self.key, self._token, content_type=self._content_type, metadata=self._metadata
                )
        while len(self._under_way) >= IN_FLIGHT:
            self._collect()
        data = self._filling.take()
        self._tail = (self._tail + data[-TAIL_BYTES:])[-TAIL_BYTES:]
        self._number += 1
        with step("task-write"):
            in_step = copy_context().run
        self._under_way.append(
            self._executor.submit(
                in_step, self._store.put_part, self.key, self._upload_id, self._number, self._offset, data
            )
        )
        self._offset += len(data)

    def _collect(self) -> None:
        self._parts.append(self._under_way.popleft().result())
