"""Sources of bytes: bytes, a file, or a stream that can be read once."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from lockgate.storage_core.errors import InvalidInputError, StoreUnavailableError
from lockgate.storage_core.stores.os_errors import translated

CHUNK: Final = 1024 * 1024
"""Bytes in memory at a time."""


class ObservedFile:
    """A file that reports how much of it was read."""

    def __init__(self, path: Path, on_read: Callable[[int], None]) -> None:
        self.path = path
        self.on_read = on_read


Source = bytes | Path | ObservedFile | Iterable[bytes]


def file_of(source: Source) -> Path | None:
    """Return the path of a source that is a file, None for any other."""
    if isinstance(source, ObservedFile):
        return source.path
    return source if isinstance(source, Path) else None


def size_of(source: Source) -> int | None:
    """Return the size of a source in bytes, None for a stream.

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
            f"{file} is not a regular file, so its size is unknown; nothing was put; copy it to one, or put "
            "its contents as a stream"
        )
    return status.st_size


def chunks_of(source: Source, size_bytes: int | None) -> Iterator[bytes]:
    """Yield the bytes of a source, a file in bounded pieces up to its size at the start.

    Raises:
        StoreUnavailableError: The file cannot be read, or became shorter.
    """
    if isinstance(source, bytes):
        yield source
    elif isinstance(source, ObservedFile):
        for piece in _read_pieces(source.path, size_bytes or 0):
            yield piece
            source.on_read(len(piece))
    elif isinstance(source, Path):
        yield from _read_pieces(source, size_bytes or 0)
    else:
        yield from source


def _read_pieces(path: Path, size_bytes: int) -> Iterator[bytes]:
    left = size_bytes
    with translated("read", str(path), changes=False), path.open("rb", buffering=0) as file:
        while left:
            piece = file.read(min(left, CHUNK))
            if not piece:
                raise StoreUnavailableError(f"file {path} became shorter while it was sent; put it again")
            left -= len(piece)
            yield piece
