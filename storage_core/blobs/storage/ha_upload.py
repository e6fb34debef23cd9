"""Upload a blob to the HA store in parts while its file is still being written.

A blob that fits in one part is put at its end. A part of a larger blob is sent as soon as the file contains
it. Parts are read back from the file, so memory holds only the parts under way.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from typing import Final, Self

from lockgate.storage_core.errors import LockgateError, NotAppliedError, OutcomeUnknownError
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.ids import new_token
from lockgate.storage_core.stores import Part, Store

PARTS_AT_ONCE: Final = 8
"""Maximum concurrent parts of one blob: a server needs this memory for each of its uploads."""


class HaUpload:
    """An upload of one blob. Use it as a context manager, which aborts an incomplete upload.

    Attributes:
        size_bytes: Size of the blob.
        is_left: Whether parts may be left that could not be aborted; the sweep aborts them.
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
        """Start to send the parts that the file contains completely.

        Raises:
            NotAppliedError: The upload could not begin, or a part could not be sent; nothing is left.
            OutcomeUnknownError: The same, and parts may be left.
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
        """Send the rest; the object is complete and durable when this returns.

        Raises:
            NotAppliedError: It was not completed; nothing of it is left.
            OutcomeUnknownError: The object may exist; parts may be left.
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

    def __exit__(self, *_: object) -> None:
        with step("blob-ha"):
            self._abort()

    @property
    def _id(self) -> str:
        """The id of the upload, which is begun at the first use."""
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
        """Abort the upload on an error, and raise `OutcomeUnknownError` if that fails."""
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
        """Abort an incomplete upload after all its threads have ended."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        if self._is_over or self._upload_id is None:
            return
        self._is_over = True
        try:
            self._store.abort_upload(self._key, self._upload_id)
        except LockgateError:
            self.is_left = True
