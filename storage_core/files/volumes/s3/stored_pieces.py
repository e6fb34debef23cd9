"""Reads and composition of the bytes of a replica in a bucket: a piece is used only once its checksum holds.

A composition makes one object of the small segments of a sealed replica. It is named by a control record, so
of two compositions exactly one counts.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from lockgate.storage_core.concurrency import in_order
from lockgate.storage_core.errors import MalformedRecordError
from lockgate.storage_core.files.checksums import crc32c
from lockgate.storage_core.files.volumes.s3.segment_log import (
    HEADER_BYTES,
    SEGMENT_BYTES,
    Piece,
    SegmentLog,
    composed_key,
    pack_footer,
    parse,
)
from lockgate.storage_core.ids import Token
from lockgate.storage_core.stores import Store

_KEPT: Final = 4
_READS: Final = 8
"""Segments that are read at a time."""


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


def compose(store: Store, log: SegmentLog, token: Token, read: Callable[[Piece], bytes]) -> None:
    """Write the object of a composition.

    Args:
        store: The volume's store.
        log: The replica.
        token: Name of the object.
        read: Returns the bytes of a piece once their checksum holds.
    """
    data = b"".join(in_order(read, log.pieces, _READS))
    parts = (data[at : at + SEGMENT_BYTES] for at in range(0, len(data), SEGMENT_BYTES))
    footer = pack_footer([(len(part), crc32c(part, 0)) for part in parts])
    store.create(composed_key(log.block, token), data + footer)
