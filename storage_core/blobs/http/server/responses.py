"""Answers: JSON, troubles, and the bytes of a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lockgate.storage_core.blobs.http.messages import BLOB, Trouble, etag_of, status_of, trouble_of
from lockgate.storage_core.blobs.http.server.auth.policy import UnauthenticatedError
from lockgate.storage_core.blobs.http.server.request_body import BodyTooLargeError, IdleBodyError
from lockgate.storage_core.blobs.http.server.service import Service
from lockgate.storage_core.blobs.keys import BlobKey
from lockgate.storage_core.blobs.sources import CHUNK
from lockgate.storage_core.errors import LockgateError, StoreUnavailableError


class Json(Response):
    """Records of ours as JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Write them."""
        return msgspec.json.encode(content)


def troubled(error: LockgateError) -> Response:
    """Return the answer that tells of an error."""
    status, headers = status_of(error), {}
    if isinstance(error, UnauthenticatedError):
        status, headers = 401, {"www-authenticate": "Bearer"}
    elif isinstance(error, BodyTooLargeError):
        status = 413
    elif isinstance(error, IdleBodyError):
        status = 408
    return Json(trouble_of(error), status, headers)


async def unexpected(request: Request, _: Exception) -> Response:
    """Return the answer to a request that met a fault of ours; the log has it."""
    name = "StoreUnavailableError" if request.method in {"GET", "HEAD"} else "OutcomeUnknownError"
    words = f"{request.method} {request.url.path}: the blob server met a fault; its log tells which"
    # Its connection is closed after an answer like this: nobody is to send another request into that.
    return Json(Trouble(error=name, message=words), 500, {"connection": "close"})


class OpenedBlob:
    """A blob's file, open: what is read of it stays whole, also when it is deleted now.

    Attributes:
        size_bytes: Of the blob.
    """

    def __init__(self, blob_key: BlobKey, file: BinaryIO) -> None:
        self.blob_key = blob_key
        self.file = file
        self.size_bytes = os.fstat(file.fileno()).st_size

    def headers(self) -> dict[str, str]:
        """Return what is told of it, whole or in part."""
        return {
            "content-type": BLOB,
            "etag": etag_of(self.blob_key),
            "accept-ranges": "bytes",
            "cache-control": "private, max-age=31536000, immutable",
        }

    def read(self, start: int, stop: int) -> bytes:
        """Return some bytes.

        Raises:
            StoreUnavailableError: They are not there any more: somebody has cut the file.
        """
        data = os.pread(self.file.fileno(), stop - start, start)
        if not data:
            raise StoreUnavailableError(
                f"blob {self.blob_key}: its file was cut at byte {start}; get it again"
            )
        return data

    def close(self) -> None:
        """Let it go."""
        with suppress(OSError):
            self.file.close()


class BlobBytes(Response):
    """A part of a blob, piece by piece."""

    def __init__(self, service: Service, blob: OpenedBlob, part: range | None) -> None:
        super().__init__(status_code=200 if part is None else 206, headers=blob.headers())
        self._service = service
        self._blob = blob
        self._part = range(blob.size_bytes) if part is None else part
        self.headers["content-length"] = str(len(self._part))
        if part is not None:
            self.headers["content-range"] = f"bytes {part.start}-{part.stop - 1}/{blob.size_bytes}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - of the base
        """Send it."""
        try:
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            if scope["method"] != "HEAD":
                await self._send(send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await self._service.move(self._blob.close)

    async def _send(self, send: Send) -> None:
        at = self._part.start
        while at < self._part.stop:
            data = await self._service.move(self._blob.read, at, min(at + CHUNK, self._part.stop))
            at += len(data)
            await send({"type": "http.response.body", "body": data, "more_body": True})


def opened(find: Callable[[], Any], blob_key: BlobKey) -> OpenedBlob:
    """Open a verified file; one that was deleted since is looked for once more.

    Args:
        find: Returns the path of the verified file.
        blob_key: Of the blob.
    """
    try:
        return OpenedBlob(blob_key, find().open("rb", buffering=0))
    except FileNotFoundError:
        return OpenedBlob(blob_key, find().open("rb", buffering=0))
