"""A blob on its way to the HA store, part by part, while its file is still being written.

A blob of one part is one call at its end. Of a larger one every part goes as soon as the file has it, read
from the file again, so that memory holds only the parts under way.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from types import TracebackType
from typing import Final, Self

from lockgate.storage_core.errors import LockgateError, NotAppliedError, OutcomeUnknownError
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.ids import new_token
from lockgate.storage_core.stores import Part, Store

PARTS_AT_ONCE: Final = 8
"""Of one blob, however many calls may be under way: a server holds as much for each of its uploads."""


class HaUpload:
    """An upload of one blob. Use it as a context manager: what is not complete by its end is aborted.

    Args:
        store: Where to.
        key: Of the object.
        file: Descriptor of the file that the bytes are read from; others append to it.
        size_bytes: Of the blob.
        part_bytes: Of each part but the last.
        parallelism: Calls under way, at most `PARTS_AT_ONCE`.

    Attributes:
        size_bytes: Of the blob.
        is_left: Whether something of it may be there that could not be dropped: the sweep has to.
    """

    def __init__(
        self, store: Store, key: str, file: int, size_bytes: int, *, part_bytes: int, parallelism: int
    ) -> None:
        self.size_bytes = size_bytes
        self._store = store
        self._key = key
        self._file = file
        self._part_bytes = max(part_bytes, -(-size_bytes // store.capabilities.max_parts))
        self._parallelism = min(parallelism, PARTS_AT_ONCE)
        self._token = new_token()
        self._upload_id: str | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._parts: list[Future[Part]] = []
        self._is_over = False
        self.is_left = False

    def follow(self, written_bytes: int) -> None:
        """Begin to send what parts the file has in whole by now.

        Raises:
            NotAppliedError: The upload could not be begun, or a part not be sent; nothing is left of it.
            OutcomeUnknownError: So, and parts of it may be left.
        """
        if self.size_bytes <= self._part_bytes:
            return
        with step("blob-ha"), self._or_aborted():
            for part in self._parts:
                if part.done():
                    part.result()
            while (start := len(self._parts) * self._part_bytes) < self.size_bytes:
                if min(start + self._part_bytes, self.size_bytes) > written_bytes:
                    return
                self._begin_part(start)

    def complete(self) -> None:
        """Send the rest; the object is whole and durable when this returns.

        Raises:
            NotAppliedError: It could not be; nothing is left of it.
            OutcomeUnknownError: It is there or not; parts of it may be left.
        """
        if self.size_bytes <= self._part_bytes:
            with step("blob-ha"):
                self._store.put(self._key, os.pread(self._file, self.size_bytes, 0))
            return
        self.follow(self.size_bytes)
        with step("blob-ha"), self._or_aborted():
            parts = [part.result() for part in self._parts]
            self._store.complete_upload(self._store.seal_upload(self._key, self._id, self._token, parts))
            self._is_over = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with step("blob-ha"):
            self._abort()

    @property
    def _id(self) -> str:
        """Of the upload, which the first part begins."""
        if self._upload_id is None:
            self._upload_id = self._store.begin_upload(self._key, self._token)
        return self._upload_id

    def _begin_part(self, start: int) -> None:
        upload_id, number = self._id, len(self._parts) + 1
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._parallelism, thread_name_prefix="lockgate-ha")

        def send() -> Part:
            data = os.pread(self._file, self._part_bytes, start)
            return self._store.put_part(self._key, upload_id, number, start, data)

        self._parts.append(self._pool.submit(copy_context().run, send))

    @contextmanager
    def _or_aborted(self) -> Iterator[None]:
        """Abort the upload on an error, and say so if that cannot be done."""
        try:
            yield
        except BaseException as error:
            self._abort()
            self.is_left |= isinstance(error, OutcomeUnknownError)
            if self.is_left and isinstance(error, NotAppliedError):
                raise OutcomeUnknownError(
                    f"upload {self._upload_id} of {self._key} to {self._store.url} failed ({error}) and "
                    "could not be aborted; its parts are left to the sweep; put the bytes again"
                ) from error
            raise

    def _abort(self) -> None:
        """Drop what was sent of an upload that is not complete, once no thread sends any more of it."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        if self._is_over or self._upload_id is None:
            return
        self._is_over = True
        try:
            self._store.abort_upload(self._key, self._upload_id)
        except LockgateError:
            self.is_left = True
