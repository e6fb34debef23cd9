"""A source of bytes on its way to a server: read once or again, hashed as it goes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from lockgate.storage_core.blobs.sources import CHUNK, Source, chunks_of, size_of


class SourceBrokeError(Exception):
    """The source raised: no fault of the connection. Its cause is what the source has raised."""


class Outgoing:
    """What a source gives, from its beginning each time it is iterated over.

    Args:
        source: Bytes, a file, or pieces; an iterator gives them once only.
        digest: That it must have; the server compares it, so it is not hashed here.

    Attributes:
        size_bytes: Of all, None if only the end tells.
        is_spent: Whether it cannot begin anew: some of it is gone.
    """

    def __init__(self, source: Source, digest: str | None = None) -> None:
        self.is_spent = False
        self.size_bytes = size_of(source)
        self._source = source
        self._told = digest
        self._hash = hashlib.sha256()

    @property
    def digest(self) -> str:
        """SHA-256 of what went since the last beginning, in hexadecimal."""
        return self._told or self._hash.hexdigest()

    def __iter__(self) -> Iterator[bytes]:
        """Yield it in bounded pieces.

        Raises:
            SourceBrokeError: The source raised.
        """
        self._hash = hashlib.sha256()
        pieces = self._pieces()
        while True:
            try:
                piece = next(pieces, None)
            except Exception as error:
                raise SourceBrokeError from error
            if piece is None:
                return
            if self._told is None:
                self._hash.update(piece)
            yield piece

    def _pieces(self) -> Iterator[bytes]:
        if isinstance(self._source, bytes):
            view = memoryview(self._source)
            yield from (bytes(view[start : start + CHUNK]) for start in range(0, len(view), CHUNK))
        elif self.size_bytes is not None:
            yield from chunks_of(self._source, self.size_bytes)
        else:
            pieces = chunks_of(self._source, self.size_bytes)
            self.is_spent = isinstance(self._source, Iterator)
            # An empty piece would end a chunked body.
            yield from (piece for piece in pieces if piece)
