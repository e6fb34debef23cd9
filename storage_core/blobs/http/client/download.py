"""A blob from a server: gone on with where it broke off, whole and verified, or an error."""

from __future__ import annotations

import hashlib
from typing import Final, Protocol
from urllib.parse import quote

from lockgate.storage_core.blobs.http.client.connection import Connection
from lockgate.storage_core.blobs.http.messages import etag_of
from lockgate.storage_core.blobs.keys import BlobKey, check_blob_job, check_blob_key
from lockgate.storage_core.blobs.sources import CHUNK
from lockgate.storage_core.errors import StoreUnavailableError

PARTIAL: Final = 206


class Sink(Protocol):
    """What takes a blob's bytes, from the beginning to the end: `Incoming` is one."""

    size_bytes: int

    def write(self, data: bytes) -> None:
        """Append bytes."""

    @property
    def digest(self) -> str:
        """SHA-256 of what was written so far, in hexadecimal."""


class Memory:
    """Takes a blob that fits in memory.

    Attributes:
        size_bytes: So far.
    """

    def __init__(self) -> None:
        self.size_bytes = 0
        self._pieces: list[bytes] = []
        self._hash = hashlib.sha256()

    def write(self, data: bytes) -> None:
        """Append bytes."""
        self._pieces.append(data)
        self._hash.update(data)
        self.size_bytes += len(data)

    @property
    def digest(self) -> str:
        """SHA-256 of what was written so far, in hexadecimal."""
        return self._hash.hexdigest()

    def data(self) -> bytes:
        """Return all."""
        return b"".join(self._pieces)


def blob_path(job_id: str, blob_key: BlobKey) -> str:
    """Return where a blob is, below a server's URL."""
    return f"/jobs/{quote(check_blob_job(job_id), safe='')}/blobs/{check_blob_key(blob_key)}"


def download(connection: Connection, job_id: str, blob_key: BlobKey, sink: Sink) -> None:
    """Pour a blob into a sink; what arrived before a break is not asked for again.

    It is given up after as many tries in a row as bring nothing more.

    Raises:
        ObjectNotFoundError: There is no such blob.
        CorruptBlobError: Every copy of it is damaged.
        StoreUnavailableError: The server does not answer, or not to the end.
    """
    while True:
        before = sink.size_bytes
        try:
            connection.repeatedly(lambda: _more(connection, job_id, blob_key, sink))
        except StoreUnavailableError:
            if sink.size_bytes == before:
                raise
        else:
            return


def _more(connection: Connection, job_id: str, blob_key: BlobKey, sink: Sink) -> None:
    """Pour what is still missing, once."""
    start = sink.size_bytes
    headers = {"range": f"bytes={start}-", "if-range": etag_of(blob_key)} if start else {}
    with connection.exchange("GET", blob_path(job_id, blob_key), headers=headers) as answer:
        skip = (
            start if answer.status != PARTIAL else 0
        )  # somebody between here and the server knows no ranges
        for data in answer.stream(CHUNK):
            wanted = data[skip:]
            skip -= len(data) - len(wanted)
            if wanted:
                sink.write(wanted)
