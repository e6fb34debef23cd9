"""Request body made from a source of bytes: hashed while it is sent, and sent again if its source allows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from lockgate.storage_core.blobs.sources import CHUNK, Source, chunks_of, size_of


class SourceError(Exception):
    """The source raised, not the connection. The cause is the source's exception."""


class SourceBody:
    """Bytes of a source, from the beginning in each iteration; a given digest is compared by the server.

    Attributes:
        size_bytes: Size of the source, None if it is unknown before its end.
        is_spent: Whether some of an iterator was read, so that it cannot be sent again.
    """

    def __init__(self, source: Source, digest: str | None = None) -> None:
        self.is_spent = False
        self.size_bytes = size_of(source)
        self._source = source
        self._expected = digest
        self._hash = hashlib.sha256()

    @property
    def digest(self) -> str:
        """SHA-256 of the bytes of the latest iteration, in hexadecimal."""
        return self._expected or self._hash.hexdigest()

    def __iter__(self) -> Iterator[bytes]:
        """Yield the bytes in bounded pieces; raise SourceError if the source raises."""
        self._hash = hashlib.sha256()
        pieces = self._pieces()
        while True:
            try:
                piece = next(pieces, None)
            except Exception as error:
                raise SourceError from error
            if piece is None:
                return
            if self._expected is None:
                self._hash.update(piece)
            yield piece

    def _pieces(self) -> Iterator[bytes]:
        if isinstance(self._source, bytes):
            view = memoryview(self._source)
            yield from (bytes(view[start : start + CHUNK]) for start in range(0, len(view), CHUNK))
        elif self.size_bytes is not None:
            yield from chunks_of(self._source, self.size_bytes)
        else:
            self.is_spent = isinstance(self._source, Iterator)
            # An empty piece would end a chunked body.
            yield from (piece for piece in chunks_of(self._source, None) if piece)
