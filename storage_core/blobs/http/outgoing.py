"""A source of bytes on its way to a server: read once or again, hashed as it goes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from storage_core.blobs.local import CHUNK
from storage_core.blobs.protocol import Source
from storage_core.errors import StoreUnavailableError
from storage_core.stores.local_errors import translated


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
        self.size_bytes: int | None = None
        self._source = source
        self._told = digest
        self._hash = hashlib.sha256()
        if isinstance(source, bytes):
            self.size_bytes = len(source)
        elif isinstance(source, Path):
            with translated("read", str(source), changes=False):
                self.size_bytes = source.stat().st_size

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
        elif isinstance(self._source, Path):
            yield from _file_pieces(self._source, self.size_bytes or 0)
        else:
            pieces = iter(self._source)
            self.is_spent = pieces is self._source
            # An empty piece would end a chunked body.
            yield from (piece for piece in pieces if piece)


def _file_pieces(path: Path, size_bytes: int) -> Iterator[bytes]:
    """Yield exactly as many bytes as were announced."""
    left = size_bytes
    with translated("read", str(path), changes=False), path.open("rb", buffering=0) as file:
        while left:
            piece = file.read(min(left, CHUNK))
            if not piece:
                raise StoreUnavailableError(f"file {path} became shorter while it was sent; put it again")
            left -= len(piece)
            yield piece
