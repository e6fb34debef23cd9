"""What every volume does with replicas, whatever it is made of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from lockgate.storage_core.errors import (
    ConflictError,
    FencedError,
    InvalidInputError,
    ObjectNotFoundError,
    StaleReplicaError,
)
from lockgate.storage_core.files.volumes.directory.directory_volume import DirectoryVolume
from lockgate.storage_core.files.volumes.protocol import Volume
from lockgate.storage_core.files.volumes.replica import BlockId, Replica, ReplicaState
from lockgate.storage_core.files.volumes.s3.s3_volume import S3Volume
from lockgate.storage_core.stamp import Stamp

B = BlockId(7)
S1, S2, S3 = Stamp(1, 1), Stamp(1, 2), Stamp(2, 3)
WRITING, SEALED = ReplicaState.WRITING, ReplicaState.SEALED


@pytest.fixture(
    params=[
        "directory",
        "fake-s3",
        pytest.param("s3-server", marks=[pytest.mark.requires("s3-server"), pytest.mark.integration]),
    ]
)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def s3_client() -> str:
    return "crt"


@pytest.fixture
def volume(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Volume]:
    if kind == "directory":
        with DirectoryVolume(tmp_path / "volume") as opened:
            yield opened
    else:
        yield S3Volume(request.getfixturevalue("store"))


@pytest.fixture
def written(volume: Volume) -> Volume:
    volume.create(B, S1)
    assert volume.append(B, S1, 0, b"abcdef") == 6
    assert volume.append(B, S1, 6, b"ghi") == 9
    assert volume.flush(B, S1) == 9
    return volume


def test_flushed_bytes_are_read_at_every_offset_and_size(written: Volume) -> None:
    for offset in range(10):
        for size in range(11):
            assert written.read(B, S1, offset, size) == b"abcdefghi"[offset : offset + size]


def test_bytes_that_are_not_flushed_are_not_read(written: Volume) -> None:
    written.append(B, S1, 9, b"jkl")

    assert written.read(B, S1, 5, 100) == b"fghi"


def test_a_repeated_append_is_compared_and_has_no_effect(written: Volume) -> None:
    assert written.append(B, S1, 6, b"ghi") == 9
    assert written.append(B, S1, 4, b"efghijk") == 11
    written.flush(B, S1)
    assert written.read(B, S1, 0, 100) == b"abcdefghijk"


@pytest.mark.parametrize(("offset", "data"), [(10, b"x"), (6, b"xyz"), (0, b"x")])
def test_a_gap_and_other_bytes_are_refused(written: Volume, offset: int, data: bytes) -> None:
    with pytest.raises(InvalidInputError):
        written.append(B, S1, offset, data)

    assert written.read(B, S1, 0, 100) == b"abcdefghi"


def test_a_fence_stops_the_older_writer_at_every_call(written: Volume) -> None:
    assert written.fence(B, S2, S1).stamp == S2
    assert written.fence(B, S2, S1).length_bytes == 9

    for call in (
        lambda: written.create(B, S1),
        lambda: written.append(B, S1, 9, b"x"),
        lambda: written.flush(B, S1),
        lambda: written.fence(B, S1, S1),
        lambda: written.trim(B, S1, 0),
        lambda: written.finish(B, S1, 9, SEALED),
    ):
        with pytest.raises(FencedError):
            call()
    assert not written.delete(B, S1)
    assert written.read(B, S2, 0, 100) == b"abcdefghi"


def test_a_newer_stamp_without_a_fence_is_refused(written: Volume) -> None:
    with pytest.raises(ConflictError):
        written.append(B, S3, 9, b"x")


def test_a_read_at_an_older_stamp_has_what_the_fence_found_and_no_other_stamp_is_read(
    written: Volume,
) -> None:
    written.fence(B, S2, S1)
    written.append(B, S2, 9, b"jkl")
    written.flush(B, S2)

    assert written.read(B, S1, 0, 100) == b"abcdefghi"
    assert written.read(B, S2, 0, 100) == b"abcdefghijkl"
    with pytest.raises(StaleReplicaError):
        written.read(B, S3, 0, 1)
    written.trim(B, S2, 4)
    written.append(B, S2, 4, b"XY")
    assert written.read(B, S1, 0, 100) == b"abcd"


def test_a_fence_opens_a_sealed_replica_to_its_stamp(written: Volume) -> None:
    written.finish(B, S1, 9, SEALED)
    assert written.fence(B, S2, S1).state is WRITING
    written.append(B, S2, 9, b"jkl")
    assert written.finish(B, S2, 12, SEALED).length_bytes == 12
    assert written.read(B, S2, 0, 100) == b"abcdefghijkl"


def test_a_replica_that_missed_a_commit_is_not_fenced_and_stays_as_it_is(written: Volume) -> None:
    with pytest.raises(StaleReplicaError):
        written.fence(B, S3, S2)
    assert written.append(B, S1, 9, b"x") == 10
    assert written.flush(B, S1) == 10


def test_an_acknowledged_length_outlives_a_fence_and_not_a_trim(written: Volume, kind: str) -> None:
    written.acknowledge(B, S1, 9)
    found = written.stat(B)
    assert found is not None
    assert found.acknowledged_bytes == (0 if "s3" in kind else 9)  # a bucket's writes are durable at once
    assert written.fence(B, S2, S1).acknowledged_bytes == found.acknowledged_bytes
    assert written.trim(B, S2, 4).acknowledged_bytes == min(found.acknowledged_bytes, 4)


@pytest.mark.parametrize("length", [0, 3, 9])
def test_a_trim_to_each_length_then_appends_go_on(written: Volume, length: int) -> None:
    written.fence(B, S2, S1)
    assert written.trim(B, S2, length).length_bytes == length
    assert written.trim(B, S2, length).length_bytes == length
    written.finish(B, S2, length, WRITING)
    written.append(B, S2, length, b"XYZ")
    written.flush(B, S2)

    assert written.read(B, S2, 0, 100) == b"abcdefghi"[:length] + b"XYZ"


def test_a_trim_beyond_the_end_is_refused(written: Volume) -> None:
    with pytest.raises(ConflictError):
        written.trim(B, S1, 10)


def test_a_sealed_replica_takes_no_appends(written: Volume) -> None:
    with pytest.raises(ConflictError):
        written.finish(B, S1, 8, SEALED)
    assert written.finish(B, S1, 9, SEALED).state is SEALED
    with pytest.raises(ConflictError):
        written.append(B, S1, 9, b"x")


def test_a_deleted_replica_is_gone(written: Volume) -> None:
    assert written.delete(B, S1)
    assert not written.delete(B, S1)
    assert written.stat(B) is None
    with pytest.raises(ObjectNotFoundError):
        written.fence(B, S1, S1)


def test_a_deletion_of_a_replica_leaves_a_copy_that_has_come_into_its_place(volume: Volume) -> None:
    volume.store(B, S1, [b"abc"])
    seen = volume.stat(B)
    assert seen is not None
    assert volume.delete(B, S1, seen.token)
    volume.store(B, S1, [b"abc"])
    assert not volume.delete(B, S1, seen.token)
    assert volume.read(B, S1, 0, 9) == b"abc"
    seen = volume.stat(B)
    assert seen is not None
    assert volume.delete(B, S1, seen.token)
    assert volume.stat(B) is None


def test_replicas_are_listed_in_pages_in_the_order_of_their_blocks(volume: Volume) -> None:
    blocks = [BlockId(number) for number in (9, 3, 12, 5)]
    assert volume.replicas(None, 10) == ()
    for block in blocks:
        volume.create(block, S1)
    for block in blocks[:2]:
        volume.append(block, S1, 0, b"abc")
        volume.finish(block, S1, 3, SEALED)
    whole = tuple(volume.stat(block) for block in sorted(blocks))
    for limit in range(1, 6):
        found, after = [], None
        while page := volume.replicas(after, limit):
            assert len(page) <= limit
            found += page
            after = page[-1].block
        assert tuple(found) == whole
    volume.delete(blocks[1], S1)
    volume.create(BlockId(4), S2)
    assert [one.block for one in volume.replicas(None, 10)] == [4, 5, 9, 12]
    assert [one.block for one in volume.replicas(BlockId(5), 1)] == [9]
    with pytest.raises(InvalidInputError, match="at least 1"):
        volume.replicas(None, 0)


def test_a_stored_replica_is_whole_and_sealed_and_a_newer_one_stays(volume: Volume) -> None:
    volume.store(B, S2, iter([b"abc", b"def"]))
    found = volume.stat(B)
    assert found is not None
    assert replace(found, token="") == Replica(B, S2, SEALED, 6, 6)
    assert volume.read(B, S2, 0, 100) == b"abcdef"
    with pytest.raises(FencedError):
        volume.store(B, S1, [b"x"])
    assert volume.fence(B, S3, S2).length_bytes == 6


def test_usage_grows_with_the_bytes_of_a_volume(volume: Volume) -> None:
    before = volume.usage()
    volume.create(B, S1)
    volume.append(B, S1, 0, bytes(10_000))
    volume.flush(B, S1)
    assert volume.usage().used_bytes >= before.used_bytes + 10_000
    assert volume.usage().free_bytes >= 0
    volume.delete(B, S1)
    assert volume.usage().used_bytes == before.used_bytes
