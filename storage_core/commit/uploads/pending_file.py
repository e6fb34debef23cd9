"""A file that is written into a pending upload: nobody sees it before the job commits.

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
from typing import TYPE_CHECKING, Final

from lockgate.storage_core.commit.process import OwnProcess
from lockgate.storage_core.commit.records.job import ColumnStatistics, PendingFile
from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.ids import Token
from lockgate.storage_core.stores import Part, Store

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

IN_FLIGHT: Final = 2
"""Parts under way beside the one that is being filled: three in memory at most."""
PARTS_A_SIZE: Final = 1000
"""The part size doubles every so many parts, so that 10,000 parts hold the largest file a store takes."""


class PendingFileWriter(io.RawIOBase):
    """A binary file that becomes a pending upload. Closing it leaves it pending; it is never visible here.

    Writing waits while two parts are under way. The upload is begun with the first part, so a file that is
    abandoned early leaves nothing behind. One thread at a time may write.

    Attributes:
        path: Below the destination, as the writer named it.
        key: Where it will be visible.
        rows: Set by whoever knows it, before `close`.
        statistics: By column; set before `close`.
    """

    def __init__(
        self,
        store: Store,
        path: str,
        key: str,
        token: Token,
        *,
        part_bytes: int,
        executor: Executor,
        content_type: str | None,
        metadata: Mapping[str, str],
        on_close: Callable[[PendingFile], None],
        process: OwnProcess,
    ) -> None:
        self.path = path
        self.key = key
        self.rows: int | None = None
        self.statistics: dict[str, ColumnStatistics] = {}
        self._store = store
        self._token = token
        self._part_bytes = max(part_bytes, store.capabilities.min_part_bytes)
        self._executor = executor
        self._content_type = content_type
        self._metadata = metadata
        self._on_close = on_close
        self._process = process
        self._filling = bytearray()
        self._offset = 0
        self._number = 0
        self._upload_id: str | None = None
        self._under_way: deque[Future[Part]] = deque()
        self._parts: list[Part] = []

    def writable(self) -> bool:
        """Tell that it can be written."""
        return True

    def tell(self) -> int:
        """Return how many bytes were written."""
        return self._offset + len(self._filling)

    def write(self, data: ReadableBuffer, /) -> int:
        """Take bytes; waits while the store is behind.

        Raises:
            FencedError: This process is a fork of the one that opened it; that one may write on.
            LockgateError: A part could not be written; the file cannot be used any more.
        """
        self._process.check()
        if self.closed:
            raise ValueError(f"{self.path} is closed")
        view = memoryview(data).cast("B")
        taken = 0
        while taken < len(view):
            room = self._next_part_bytes() - len(self._filling)
            self._filling += view[taken : taken + room]
            taken = min(taken + room, len(view))
            if len(self._filling) >= self._next_part_bytes():
                self._send()
        return len(view)

    def close(self) -> None:
        """Send what is left and seal the upload; the file is pending from here on.

        Raises:
            FencedError: This process is a fork of the one that opened it; that one may write on.
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
        self._on_close(PendingFile(path=self.path, upload=upload, rows=self.rows, statistics=self.statistics))

    def abort(self) -> None:
        """Drop the upload; idempotent. What cannot be dropped now is swept at the job's end."""
        if self.closed:
            return
        super().close()
        if not self._process.is_this:
            return  # the upload is the parent's, and its threads, which would send the parts, are not here
        for part in self._under_way:
            part.cancel()
        for part in self._under_way:
            with suppress(LockgateError):
                if not part.cancelled():
                    part.result()  # a part that lands after the abort would keep its bytes
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
        # RawIOBase would close, and so seal, a file that was forgotten half-written.
        if hasattr(self, "_under_way"):
            self.abort()

    def _next_part_bytes(self) -> int:
        return int(self._part_bytes << (self._number // PARTS_A_SIZE))

    def _send(self) -> None:
        if self._upload_id is None:
            with step("task-write"):
                self._upload_id = self._store.begin_upload(
                    self.key, self._token, content_type=self._content_type, metadata=self._metadata
                )
        while len(self._under_way) >= IN_FLIGHT:
            self._collect()
        data = bytes(self._filling)
        self._filling.clear()
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
