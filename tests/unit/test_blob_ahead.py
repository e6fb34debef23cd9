"""What goes on to the HA store before it is whole here, and small blobs that are recorded together."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockgate.storage_core.blobs.protocol import BlobInfo, NewBlob
from lockgate.storage_core.blobs.server.put_batch import put_many
from lockgate.storage_core.errors import CorruptBlobError, FencedError
from tests.blob_world import PART_BYTES, BlobWorld, blob_world, key_of

DATA = bytes(range(256)) * (PART_BYTES // 128) + b"the rest"
"""Two parts and a little."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[BlobWorld]:
    with blob_world(tmp_path) as world:
        yield world


def told(data: bytes) -> NewBlob:
    return NewBlob(digest=hashlib.sha256(data).hexdigest(), owners=("job",))


def open_uploads(world: BlobWorld) -> int:
    assert world.server.ha is not None
    return sum(len(page) for page in world.server.ha.open_uploads())


def nothing_is_left(world: BlobWorld) -> bool:
    assert world.server.ha is not None
    found = [*world.server.ha.blobs(), *world.server.local.blobs("sales")]
    return not found and open_uploads(world) == 0


def test_parts_of_a_blob_whose_digest_is_told_go_before_the_last_one_is_here(world: BlobWorld) -> None:
    with world.server.arriving("sales", told(DATA), size_bytes=len(DATA)) as arriving:
        arriving.write(DATA[: PART_BYTES - 1])
        assert open_uploads(world) == 0
        arriving.write(DATA[PART_BYTES - 1 : PART_BYTES])
        assert open_uploads(world) == 1
        arriving.write(DATA[PART_BYTES:])
        blob = world.server.keep(arriving, "sales", told(DATA))
    assert open_uploads(world) == 0
    assert world.is_local(blob)
    world.server.local.delete(*key_of(blob))
    assert world.server.get(*key_of(blob)) == DATA


def test_bytes_that_break_off_after_their_first_part_leave_nothing(world: BlobWorld) -> None:
    with world.server.arriving("sales", told(DATA), size_bytes=len(DATA)) as arriving:
        arriving.write(DATA[:PART_BYTES])
        assert open_uploads(world) == 1
    assert nothing_is_left(world)


def test_other_bytes_than_were_told_leave_nothing_though_their_parts_went(world: BlobWorld) -> None:
    with pytest.raises(CorruptBlobError, match="send them again"):
        world.server.put(DATA[:-1] + b"!", job_id="sales", digest=told(DATA).digest)
    assert nothing_is_left(world)


def test_fewer_bytes_than_were_announced_are_put_as_what_they_are(world: BlobWorld) -> None:
    with world.server.arriving("sales", told(DATA), size_bytes=len(DATA) + 1) as arriving:
        arriving.write(DATA)
        blob = world.server.keep(arriving, "sales", told(DATA))
    assert open_uploads(world) == 0
    assert world.is_local(blob)
    assert world.is_in_ha(blob)


def test_blobs_put_together_are_recorded_together_and_one_that_is_refused_takes_none_with_it(
    world: BlobWorld,
) -> None:
    closed = world.server.begin_set("sales")
    world.server.complete_set(closed)
    wrong = NewBlob(digest=told(b"other").digest)
    good = [(told(b"%d" % number), b"%d" % number) for number in range(20)]
    late = (NewBlob(upload_set=closed), b"late")
    outcomes = put_many(world.server, "sales", [*good[:10], (wrong, b"bytes"), late, *good[10:]])
    kinds = [type(outcome) for outcome in outcomes]
    assert kinds == [BlobInfo] * 10 + [CorruptBlobError, FencedError] + [BlobInfo] * 10
    blobs = [outcome for outcome in outcomes if isinstance(outcome, BlobInfo)]
    assert [world.server.get(*key_of(blob)) for blob in blobs] == [data for _, data in good]
    assert {row.put_s for row in world.server.page("sales")} == {world.clock.now_s()}
    assert len(list(world.server.local.blobs("sales"))) == 20
