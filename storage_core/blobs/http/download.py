"""Download a blob, resuming after a broken connection."""

from __future__ import annotations

import hashlib
from io import BytesIO
from typing import Final, Protocol
from urllib.parse import quote

from lockgate.storage_core.blobs.http.messages import etag_of
from lockgate.storage_core.blobs.keys import BlobKey, check_blob_job, check_blob_key
from lockgate.storage_core.blobs.sources import CHUNK
from lockgate.storage_core.errors import StoreUnavailableError
from lockgate.storage_core.http.connection import Connection

PARTIAL: Final = 206


class Sink(Protocol):
    """Receives the bytes of a blob in order; `IncomingFile` is one."""

    def write(self, data: bytes) -> None:
        """Append bytes."""

    @property
    def size_bytes(self) -> int:
        """Number of bytes written so far."""

    @property
    def digest(self) -> str:
        """SHA-256 of the bytes written so far, in hexadecimal."""


class MemorySink:
    """Receives a blob that fits in memory."""

    def __init__(self) -> None:
        self._data = BytesIO()

    def write(self, data: bytes) -> None:
        """Append bytes."""
        self._data.write(data)

    @property
    def size_bytes(self) -> int:
        """Number of bytes written so far."""
        return self._data.tell()

    @property
    def digest(self) -> str:
        """SHA-256 of the bytes written so far, in hexadecimal."""
        return hashlib.sha256(self._data.getbuffer()).hexdigest()

    def data(self) -> bytes:
        """Return all bytes."""
        return self._data.getvalue()


def blob_path(job_id: str, blob_key: BlobKey) -> str:
    """Return the path of a blob below a server's URL."""
    return f"/jobs/{quote(check_blob_job(job_id), safe='')}/blobs/{check_blob_key(blob_key)}"


def download(connection: Connection, job_id: str, blob_key: BlobKey, sink: Sink) -> None:
    """Write a blob to a sink; bytes that arrived before a break are not requested again.

    The caller compares the digest.

    Raises:
        ObjectNotFoundError: There is no such blob.
        CorruptBlobError: Every copy of it is damaged.
        StoreUnavailableError: The server does not respond, or all retries in a row brought no more bytes.
    """
    while True:
        before = sink.size_bytes
        try:
            connection.retry(lambda: _download_rest(connection, job_id, blob_key, sink))
        except StoreUnavailableError:
            if sink.size_bytes == before:
                raise
        else:
            return


def _download_rest(connection: Connection, job_id: str, blob_key: BlobKey, sink: Sink) -> None:
    """Write the missing bytes, in one request."""
    start = sink.size_bytes
    headers = {"range": f"bytes={start}-", "if-range": etag_of(blob_key)} if start else {}
    with connection.request("GET", blob_path(job_id, blob_key), headers=headers) as response:
        # A proxy may ignore ranges and send the whole blob.
        skip = 0 if response.status == PARTIAL else start
        for data in response.stream(CHUNK):
            wanted = data[skip:]
            skip -= len(data) - len(wanted)
            if wanted:
                sink.write(wanted)
