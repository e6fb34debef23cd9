"""Parts of a blob are forwarded to the HA store before the blob is complete in the local store."""

from __future__ import annotations

import hashlib

import pytest

from lockgate.storage_core.blobs.blob_protocol import NewBlob
from lockgate.storage_core.errors import CorruptBlobError
from tests.support.blobs.server import PART_BYTES, BlobWorld, key_of

DATA = bytes(range(256)) * (PART_BYTES // 128) + b"the rest"
"""Slightly longer than two parts."""


def new_blob(data: bytes) -> NewBlob:
    return NewBlob(digest=hashlib.sha256(data).hexdigest(), owners=("job",))


def open_uploads(world: BlobWorld) -> int:
    assert world.server.stores.ha is not None
    return sum(len(page) for page in world.server.stores.ha.open_uploads())


def nothing_is_left(world: BlobWorld) -> bool:
    assert world.server.stores.ha is not None
    found = [*world.server.stores.ha.blobs(), *world.server.stores.local.blobs("sales")]
    return not found and open_uploads(world) == 0


def test_parts_of_a_blob_with_a_known_digest_are_uploaded_before_the_last_one_arrives(
    world: BlobWorld,
) -> None:
    with world.server.ingest.receiving("sales", new_blob(DATA), size_bytes=len(DATA)) as arriving:
        arriving.write(DATA[: PART_BYTES - 1])
        assert open_uploads(world) == 0
        arriving.write(DATA[PART_BYTES - 1 : PART_BYTES])
        assert open_uploads(world) == 1
        arriving.write(DATA[PART_BYTES:])
        blob = world.server.ingest.keep(arriving, "sales", new_blob(DATA))
    assert open_uploads(world) == 0
    assert world.is_local(blob)
    world.server.stores.local.delete(*key_of(blob))
    assert world.server.get(*key_of(blob)) == DATA


def test_a_put_that_stops_after_its_first_part_leaves_nothing(world: BlobWorld) -> None:
    with world.server.ingest.receiving("sales", new_blob(DATA), size_bytes=len(DATA)) as arriving:
        arriving.write(DATA[:PART_BYTES])
        assert open_uploads(world) == 1
    assert nothing_is_left(world)


def test_bytes_with_another_digest_leave_nothing_although_their_parts_were_uploaded(world: BlobWorld) -> None:
    with pytest.raises(CorruptBlobError, match="send them again"):
        world.server.put(DATA[:-1] + b"!", job_id="sales", digest=new_blob(DATA).digest)
    assert nothing_is_left(world)
