"""What bytes come from: bytes, a file, or a stream that can be read once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from storage_core.blobs.local import CHUNK
from storage_core.blobs.protocol import Source
from storage_core.stores.local_errors import translated


def size_of(source: Source) -> int | None:
    """Return how many bytes a source has, None if its end tells."""
    if isinstance(source, bytes):
        return len(source)
    if isinstance(source, Path):
        with translated("read", str(source), changes=False):
            return source.stat().st_size
    return None


def chunks_of(source: Source) -> Iterator[bytes]:
    """Yield a source's bytes, in bounded pieces."""
    if isinstance(source, bytes):
        yield source
    elif isinstance(source, Path):
        with source.open("rb", buffering=0) as file:
            while data := file.read(CHUNK):
                yield data
    else:
        yield from source
