"""Reads the bytes of replicas in a bucket: a piece is served only once its checksum holds."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

from lockgate.storage_core.errors import MalformedRecordError
from lockgate.storage_core.files.checksums import crc32c
from lockgate.storage_core.files.volumes.s3.segment_format import HEADER_BYTES, parse
from lockgate.storage_core.files.volumes.s3.segment_log import Piece, SegmentLog
from lockgate.storage_core.stores import Store

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
