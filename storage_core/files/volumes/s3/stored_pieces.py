"""Reads and composition of the bytes of a replica in a bucket: a piece is used only once its checksum holds.

A composition makes one object of the segments of a sealed replica. Those of the store's least part and more
are copied by the store; smaller ones are read and written again. The object is named by a control record, so
of two compositions exactly one counts.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Final

from lockgate.storage_core.concurrency import in_order
from lockgate.storage_core.errors import MalformedRecordError, NotAppliedError, OutcomeUnknownError
from lockgate.storage_core.files.checksums import crc32c
from lockgate.storage_core.files.volumes.s3.segment_log import (
    HEADER_BYTES,
    Piece,
    SegmentLog,
    composed_key,
    pack_footer,
    parse,
)
from lockgate.storage_core.ids import Token
from lockgate.storage_core.stores import Part, Store

_KEPT: Final = 4


class StoredPieces:
    """The pieces of a store, of which the last ones that were read are kept."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, log: SegmentLog, offset: int, size: int) -> bytes:
        """Return bytes of a replica, which ends before them or in them if they are fewer.

        Raises:
            MalformedRecordError: A checksum does not hold.
        """
        found = []
        for piece in log.pieces:
            begin, end = max(offset, piece.offset), min(offset + size, piece.offset + piece.size)
            if begin < end:
                found.append(self.piece(piece)[begin - piece.offset : end - piece.offset])
        return b"".join(found)

    def piece(self, piece: Piece) -> bytes:
        """Return the bytes of a piece; raises like `read`."""
        name = piece.key, piece.start
        with self._lock:
            data = self._kept.get(name)
        if data is None:
            data = self._fetch(piece)
            with self._lock:
                self._kept[name] = data
                while len(self._kept) > _KEPT:
                    self._kept.popitem(last=False)
        return data[: piece.size]

    def _fetch(self, piece: Piece) -> bytes:
        url = f"{self._store.url}/{piece.key}"
        if piece.checksum is None:
            stored = self._store.get(piece.key)
            header, data = parse(stored, url), stored[HEADER_BYTES:]
            checksum = header.checksum if header.offset == piece.offset else -1
        else:
            data = self._store.get(piece.key, start=piece.start, length=piece.stored_bytes)
            checksum = piece.checksum
        if len(data) != piece.stored_bytes or crc32c(data, 0) != checksum:
            raise MalformedRecordError(f"{url}: the checksum of the bytes at {piece.start} does not hold")
        return data


_READS: Final = 8
"""Segments that are read at a time."""


def compose(store: Store, log: SegmentLog, token: Token, read: Callable[[Piece], bytes]) -> None:
    """Write the object of a composition.

    Args:
        store: The volume's store.
        log: The replica.
        token: Name of the object.
        read: Returns the bytes of a piece once their checksum holds.
    """
    key = composed_key(log.block, token)
    upload_id = store.begin_upload(key, token)
    run = _Upload(store, key, upload_id)
    try:
        for written in _parts(log.pieces, store.capabilities.min_part_bytes, read):
            run.add(written)
        run.end()
        store.complete_upload(store.seal_upload(key, upload_id, token, run.parts), if_absent=True)
    except NotAppliedError:
        with suppress(NotAppliedError, OutcomeUnknownError):
            store.abort_upload(key, upload_id)
        raise


class _Upload:
    """The parts of a composed object."""

    def __init__(self, store: Store, key: str, upload_id: str) -> None:
        self.parts: list[Part] = []
        self._store = store
        self._key = key
        self._upload_id = upload_id
        self._offset = 0
        self._sums: list[tuple[int, int]] = []
        self._rest = b""

    def add(self, written: Piece | bytes) -> None:
        """Write a part; bytes that are too few for one wait for the footer."""
        size = written.size if isinstance(written, Piece) else len(written)
        number = len(self.parts) + 1
        if isinstance(written, Piece):
            self._sums.append((size, self._checksum(written)))
            part = self._store.copy_part(
                self._key,
                self._upload_id,
                number,
                self._offset,
                source=written.key,
                start=written.start,
                length=size,
            )
        else:
            self._sums.append((size, crc32c(written, 0)))
            if size < self._store.capabilities.min_part_bytes:
                self._rest = written
                return
            part = self._store.put_part(self._key, self._upload_id, number, self._offset, written)
        self.parts.append(part)
        self._offset += size

    def end(self) -> None:
        """Write the last bytes and the footer."""
        last = self._rest + pack_footer(self._sums)
        self.parts.append(
            self._store.put_part(self._key, self._upload_id, len(self.parts) + 1, self._offset, last)
        )

    def _checksum(self, piece: Piece) -> int:
        """Return the checksum of a piece."""
        if piece.checksum is not None:
            return piece.checksum
        return parse(self._store.get(piece.key, length=HEADER_BYTES), piece.key).checksum


def _parts(pieces: Iterable[Piece], least: int, read: Callable[[Piece], bytes]) -> Iterator[Piece | bytes]:
    """Yield the parts in order: pieces to copy, and bytes; only the last bytes may be fewer than `least`."""
    gathered = bytearray()

    def fetch(piece: Piece) -> tuple[Piece, bytes | None]:
        is_copied = piece.size == piece.stored_bytes and piece.size >= least
        return piece, None if is_copied else read(piece)

    for piece, data in in_order(fetch, pieces, _READS):
        if data is None and not gathered:
            yield piece
            continue
        gathered += read(piece) if data is None else data
        if len(gathered) >= least:
            yield bytes(gathered)
            gathered.clear()
    if gathered:
        yield bytes(gathered)
