"""Responses with the bytes of a blob."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lockgate.storage_core.blobs.http.messages import BLOB, etag_of
from lockgate.storage_core.blobs.http.server.service import Service
from lockgate.storage_core.blobs.keys import BlobKey
from lockgate.storage_core.blobs.sources import CHUNK
from lockgate.storage_core.errors import StoreUnavailableError


class OpenedBlob:
    """An open file of a blob, readable to its end even if the blob is deleted meanwhile.

    Attributes:
        size_bytes: Size of the blob.
    """

    def __init__(self, blob_key: BlobKey, file: BinaryIO) -> None:
        self.blob_key = blob_key
        self.file = file
        self.size_bytes = os.fstat(file.fileno()).st_size

    def headers(self) -> dict[str, str]:
        """Return the headers of a response with all or some of its bytes."""
        return {
            "content-type": BLOB,
            "etag": etag_of(self.blob_key),
            "accept-ranges": "bytes",
            "cache-control": "private, max-age=31536000, immutable",
        }

    def read(self, start: int, stop: int) -> bytes:
        """Return a range of bytes.

        Raises:
            StoreUnavailableError: The file was truncated.
        """
        data = os.pread(self.file.fileno(), stop - start, start)
        if not data:
            raise StoreUnavailableError(
                f"blob {self.blob_key}: its file was truncated at byte {start}; get it again"
            )
        return data

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):
            self.file.close()


class BlobResponse(Response):
    """A blob or a range of it, sent in pieces."""

    def __init__(self, service: Service, blob: OpenedBlob, part: range | None) -> None:
        super().__init__(status_code=200 if part is None else 206, headers=blob.headers())
        self._service = service
        self._blob = blob
        self._part = range(blob.size_bytes) if part is None else part
        self.headers["content-length"] = str(len(self._part))
        if part is not None:
            self.headers["content-range"] = f"bytes {part.start}-{part.stop - 1}/{blob.size_bytes}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - of the base
        """Send the bytes, and close the file."""
        try:
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            if scope["method"] != "HEAD":
                await self._send(send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await self._service.transfer(self._blob.close)

    async def _send(self, send: Send) -> None:
        at = self._part.start
        while at < self._part.stop:
            data = await self._service.transfer(self._blob.read, at, min(at + CHUNK, self._part.stop))
            at += len(data)
            await send({"type": "http.response.body", "body": data, "more_body": True})


def open_verified(find: Callable[[], Path], blob_key: BlobKey) -> OpenedBlob:
    """Open the verified file of a blob that `find` returns; find it once more if it was deleted meanwhile."""
    try:
        return OpenedBlob(blob_key, find().open("rb", buffering=0))
    except FileNotFoundError:
        return OpenedBlob(blob_key, find().open("rb", buffering=0))
