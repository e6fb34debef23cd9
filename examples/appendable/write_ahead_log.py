"""A small write-ahead log: records that are durable when `append_record` returns, and replayed in order."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lockgate.storage_core.files.files import Files

HEADER: Final = struct.Struct("<II")
"""Length and CRC-32 of the record that follows."""

# A file is always a prefix of what its writers have written, in their order, without a gap: so only the last
# record can be incomplete. A record that was flushed is whole. One that was not may be there in part: a long
# one, and one over the end of a block, is sent in pieces, and the writer may end between two of them. It was
# never acknowledged, so replay leaves it out, and the next writer cuts it off before it appends.


class WriteAheadLog:
    """The one writer of a log; opening it waits for no writer that lives, and closes what a dead one left."""

    def __init__(self, files: Files, path: str) -> None:
        """Open the end of the log, or create it.

        Raises:
            LeaseHeldError: Another process writes it, or one that ended less than the lease's limit ago.
        """
        try:
            self._writer = files.append(path)  # first: then the file has its final length
        except FileNotFoundError:
            self._writer = files.create(path)
        end = sum(HEADER.size + len(record) for record in replay(files, path))
        if end < self._writer.tell():
            self._writer.close()
            files.truncate(path, end)
            self._writer = files.append(path)

    def append_record(self, record: bytes) -> None:
        """Append a record; it is durable when this returns.

        Raises:
            FencedError: Another process writes the log now; the record may be in it, or not.
            StoreUnavailableError: The record is kept, and is in the log when the next call returns.
        """
        self._writer.write(HEADER.pack(len(record), zlib.crc32(record)) + record)
        self._writer.flush()

    def __enter__(self) -> WriteAheadLog:
        """Return the log."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the log."""
        self._writer.close()


def replay(files: Files, path: str) -> Iterator[bytes]:
    """Yield the records in their order, also while the log is written.

    Raises:
        ValueError: A record is not what was appended: something else has written to the file.
    """
    with io.BufferedReader(files.open(path)) as reader:
        while len(header := reader.read(HEADER.size)) == HEADER.size:
            length, checksum = HEADER.unpack(header)
            if len(record := reader.read(length)) < length:
                return
            if zlib.crc32(record) != checksum:
                raise ValueError(f"{path}: no record of {length} bytes ends at byte {reader.tell()}")
            yield record
