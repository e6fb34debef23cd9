"""Many small blobs at once: their bytes are placed some at a time, and recorded in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lockgate.storage_core.blobs.protocol import BlobInfo, NewBlob
from lockgate.storage_core.blobs.server.receiving import Placed
from lockgate.storage_core.blobs.server.server import BlobServer
from lockgate.storage_core.concurrency import in_order
from lockgate.storage_core.errors import LockgateError

AT_A_TIME: Final = 16
"""Blobs whose bytes are on their way to the stores."""


def put_many(
    server: BlobServer, job_id: str, blobs: Sequence[tuple[NewBlob, bytes]]
) -> list[BlobInfo | LockgateError]:
    """Put blobs, each alone: one that is refused takes none with it. See `Blobs.put`.

    Returns:
        The blobs, in their order, or why there is none.
    """
    with server.putting() as puts:

        def place(blob: tuple[NewBlob, bytes]) -> Placed | LockgateError:
            new, data = blob
            try:
                with server.arriving(job_id, new, size_bytes=len(data), within=puts) as arriving:
                    arriving.write(data)
                    return server.place(arriving, job_id, new)
            except LockgateError as error:
                return error

        outcomes = list(in_order(place, blobs, AT_A_TIME))
        placed = [one for one in outcomes if isinstance(one, Placed)]
        if not placed:
            return [one for one in outcomes if isinstance(one, LockgateError)]
        recorded = iter(_recorded(server, placed))
        return [next(recorded) if isinstance(one, Placed) else one for one in outcomes]


def _recorded(server: BlobServer, placed: Sequence[Placed]) -> list[BlobInfo | LockgateError]:
    try:
        return server.record(placed)
    except LockgateError as error:
        return [error] * len(placed)
