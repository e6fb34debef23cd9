"""What bytes come from: bytes, a file, or a stream that can be read once."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from lockgate.storage_core.errors import InvalidInputError, StoreUnavailableError
from lockgate.storage_core.stores.os_errors import translated

CHUNK: Final = 1024 * 1024
"""Bytes in memory at a time, whatever a blob's size."""


class HeardFile:
    """A file whose reading is heard of.

    Args:
        path: Of the file.
        heard: Hears how many bytes each piece has; all of them again where the file is read again.
    """

    def __init__(self, path: Path, heard: Callable[[int], None]) -> None:
        self.path = path
        self.heard = heard


Source = bytes | Path | HeardFile | Iterable[bytes]


def file_of(source: Source) -> Path | None:
    """Return the file that a source is; None if it is none."""
    if isinstance(source, HeardFile):
        return source.path
    return source if isinstance(source, Path) else None


def size_of(source: Source) -> int | None:
    """Return how many bytes a source has, None if its end tells.

    Raises:
        InvalidInputError: It is a pipe, a device or a directory.
        StoreUnavailableError: The file cannot be read.
    """
    if isinstance(source, bytes):
        return len(source)
    file = file_of(source)
    if file is None:
        return None
    with translated("read", str(file), changes=False):
        status = file.stat()
    if not stat.S_ISREG(status.st_mode):
        raise InvalidInputError(
            f"{file} is no regular file, so it does not tell how many bytes it has; nothing was put; copy it "
            "to one, or put what it gives as a stream"
        )
    return status.st_size


def chunks_of(source: Source, size_bytes: int | None) -> Iterator[bytes]:
    """Yield a source's bytes, of a file in bounded pieces.

    Args:
        source: Whose.
        size_bytes: That a file had when it was asked for its size; what was appended since is left out.

    Raises:
        StoreUnavailableError: The file cannot be read, or became shorter.
    """
    if isinstance(source, bytes):
        yield source
    elif isinstance(source, HeardFile):
        for piece in _pieces_of(source.path, size_bytes or 0):
            yield piece
            source.heard(len(piece))
    elif isinstance(source, Path):
        yield from _pieces_of(source, size_bytes or 0)
    else:
        yield from source


def _pieces_of(path: Path, size_bytes: int) -> Iterator[bytes]:
    left = size_bytes
    with translated("read", str(path), changes=False), path.open("rb", buffering=0) as file:
        while left:
            piece = file.read(min(left, CHUNK))
            if not piece:
                raise StoreUnavailableError(f"file {path} became shorter while it was sent; put it again")
            left -= len(piece)
            yield piece
