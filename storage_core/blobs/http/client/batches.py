"""Many small blobs, some in a request: from here to a server and back."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from lockgate.storage_core.blobs.http import messages
from lockgate.storage_core.blobs.http.client.connection import Connection, decoded
from lockgate.storage_core.blobs.http.frames import FRAME_BYTES, GotFrame, PutOutcome, framed, read_head
from lockgate.storage_core.blobs.keys import BlobKey, digest_of
from lockgate.storage_core.blobs.protocol import BlobInfo, NewBlob
from lockgate.storage_core.errors import InvalidInputError, StoreUnavailableError
from lockgate.storage_core.journal.write.mutation import new_request_id
from lockgate.storage_core.settings import MIB

BATCH: Final = 256
"""Blobs of one request."""

BATCH_BYTES: Final = 8 * MIB
"""Of a request of puts, beyond which the next one begins."""

Batch = Sequence[tuple[NewBlob, bytes]]


def batches(blobs: Iterable[tuple[NewBlob, bytes]]) -> Iterator[Batch]:
    """Yield blobs as requests take them, each with an id of its own and its digest.

    Raises:
        InvalidInputError: One is too large for a frame.
    """
    batch: list[tuple[NewBlob, bytes]] = []
    size_bytes = 0
    for new, data in blobs:
        if len(data) > FRAME_BYTES:
            raise InvalidInputError(
                f"blob {new.name or len(batch)} has {len(data)} bytes, more than {FRAME_BYTES}: put it alone"
            )
        digest = new.digest or hashlib.sha256(data).hexdigest()
        request_id = new.request_id or new_request_id()
        batch.append((msgspec.structs.replace(new, digest=digest, request_id=request_id), data))
        size_bytes += len(data)
        if len(batch) == BATCH or size_bytes >= BATCH_BYTES:
            yield batch
            batch, size_bytes = [], 0
    if batch:
        yield batch


def put_batch(connection: Connection, path: str, batch: Batch) -> list[BlobInfo]:
    """Put blobs, again if need be: their request ids keep each from becoming two.

    Raises:
        LockgateError: Of the first one that was refused; the others may have been put.
    """
    body = framed(batch)

    def once() -> list[BlobInfo]:
        with connection.exchange(
            "POST", path, headers={"content-type": messages.FRAMES}, body=body
        ) as answer:
            return [outcome.told() for outcome in decoded(answer, list[PutOutcome])]

    return connection.repeatedly(once)


def get_batch(connection: Connection, path: str, blob_keys: Sequence[BlobKey]) -> list[bytes | None]:
    """Get blobs, going on after a break with those that are missing.

    Returns:
        Their bytes, in their order; None for one that arrived damaged.

    Raises:
        LockgateError: Of the first one that cannot be had.
    """
    found: list[bytes | None] = []

    def once() -> None:
        told = msgspec.json.encode(messages.GetMany(blob_keys=tuple(blob_keys[len(found) :])))
        headers = {"content-type": "application/json"}
        with connection.exchange("POST", path, headers=headers, body=told, changes=False) as answer:
            for blob_key in blob_keys[len(found) :]:
                got = read_head(answer, GotFrame)
                if got is None:
                    raise StoreUnavailableError(f"the answer ends before blob {blob_key}; get it again")
                if got.trouble is not None:
                    raise messages.error_of(got.trouble)
                data = answer.read(got.size_bytes)
                is_whole = hashlib.sha256(data).hexdigest() == digest_of(blob_key)
                found.append(data if is_whole else None)

    connection.repeatedly(once)
    return found
