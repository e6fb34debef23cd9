"""A volume in a bucket: lost answers, late writers, compositions and damage."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from lockgate.storage_core.errors import (
    FencedError,
    MalformedRecordError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    RecordVersionError,
    StaleReplicaError,
    StoreUnavailableError,
    UnsupportedStoreError,
)
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.volumes.protocol import VolumeId
from lockgate.storage_core.files.volumes.replica import BlockId, ReplicaState
from lockgate.storage_core.files.volumes.s3 import s3_volume, stored_pieces
from lockgate.storage_core.files.volumes.s3.s3_volume import S3Volume
from lockgate.storage_core.files.volumes.s3.segment_log import HEADER_BYTES
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.stamp import Stamp
from lockgate.storage_core.stores import Store, open_store
from lockgate.storage_core.stores.local.store import LocalStore
from lockgate.storage_core.stores.protocol import ObjectInfo
from tests.support.files.directory_volumes import B, flush

S1, S2, S3 = Stamp(1, 1), Stamp(1, 2), Stamp(2, 3)
WRITING, SEALED = ReplicaState.WRITING, ReplicaState.SEALED
LARGE = 16


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return fresh(tmp_path, "bucket")


@contextmanager
def at_request(number: int, action: Callable[[str], None]) -> Iterator[list[str]]:
    """Call an action at one of the points before and after the requests of a volume."""
    points: list[str] = []

    def hit(point: str) -> None:
        if point.startswith("volume-"):
            points.append(point)
            if len(points) == number:
                FAILPOINTS.observer = None
                action(point)
                FAILPOINTS.observer = hit

    FAILPOINTS.observer = hit
    try:
        yield points
    finally:
        FAILPOINTS.observer = None


def numbers_of(life: Callable[[], object]) -> range:
    with at_request(0, lambda _: None) as points:
        life()
    return range(1, len(points) + 1)


def written(store: Store, *pieces: bytes) -> S3Volume:
    volume = S3Volume(store)
    volume.create(B, S1)
    for number, piece in enumerate(pieces):
        flush(volume, S1, len(b"".join(pieces[:number])), piece)
    return volume


def fresh(tmp_path: Path, name: str) -> Store:
    return open_store(str(tmp_path / name), load_settings())


def _life(volume: S3Volume) -> bytes:
    """Write, fence, trim, open again, seal with a composition; return the bytes."""
    volume.create(B, S1)
    whole = b""
    for piece in (b"abc", b"d" * LARGE):
        flush(volume, S1, len(whole), piece)
        whole += piece
    volume.fence(B, S2, S1)
    volume.trim(B, S2, 10)
    volume.finish(B, S2, 10, WRITING)
    whole = whole[:10]
    for piece in (b"e" * LARGE, b"fg"):
        flush(volume, S2, len(whole), piece)
        whole += piece
    volume.finish(B, S2, len(whole), SEALED)
    return whole


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_lost_answer_of_each_creation_has_its_effect_once(tmp_path: Path, side: str) -> None:
    def lose(point: str) -> None:
        if point.endswith(f".create.{side}"):
            raise OutcomeUnknownError(f"{point}: the answer was lost on purpose")

    for number in numbers_of(lambda: _life(S3Volume(fresh(tmp_path, "count")))):
        store = fresh(tmp_path, f"lost-{number}")
        with at_request(number, lose):
            whole = _life(S3Volume(store))
        assert S3Volume(store).read(B, S2, 0, 100) == whole
        assert S3Volume(store).stat(B).state is SEALED


def test_a_process_that_uses_many_blocks_knows_few_and_loses_no_gathered_byte(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_volume, "_KEPT", 2)
    volume = S3Volume(store)

    def write(block: BlockId) -> bytes:
        volume.create(block, S1)
        data = b""
        for piece in (b"abc", b"%d" % block, b"e"):
            volume.append(block, S1, len(data), piece)
            assert not any(volume.stat(BlockId(other)) for other in range(100, 104))
            data += piece
            if piece != b"e":
                volume.flush(block, S1)
        volume.finish(block, S1, len(data), SEALED)
        return data

    blocks = [BlockId(number) for number in range(1, 13)]
    with ThreadPoolExecutor(4) as threads:
        whole = list(threads.map(write, blocks))
    assert [volume.read(block, S1, 0, 99) for block in blocks] == whole
    assert len(volume._logs) <= 3
    volume.fence(BlockId(1), S2, S1)
    volume.append(BlockId(1), S2, 5, b"late")
    assert not any(volume.stat(BlockId(other)) for other in range(100, 104))
    S3Volume(store).fence(BlockId(1), S3, S2)
    assert volume.stat(BlockId(1)).length_bytes == 5  # type: ignore[union-attr]


def test_a_request_of_a_seal_that_fails_leaves_its_process_with_all_bytes(tmp_path: Path) -> None:
    def refuse(_: str) -> None:
        raise StoreUnavailableError("on purpose")

    def seal(volume: S3Volume) -> object:
        return volume.finish(B, S1, 6, SEALED)

    whole = written(fresh(tmp_path, "whole"), b"abc", b"def")
    for number in numbers_of(lambda: seal(whole)):
        volume = written(fresh(tmp_path, f"failed-{number}"), b"abc", b"def")
        with at_request(number, refuse), suppress(StoreUnavailableError):
            assert seal(volume).length_bytes == 6  # type: ignore[attr-defined]
        assert volume.stat(B).length_bytes == 6
        assert volume.fence(B, S2, S1).length_bytes == 6
        assert volume.read(B, S2, 0, 100) == b"abcdef"


def test_an_append_that_arrives_after_all_answers_were_lost_counts_once(store: Store) -> None:
    volume = written(store, b"abc")
    volume.append(B, S1, 3, b"def")
    late: list[tuple[str, bytes]] = []
    inner = store.inner.create  # type: ignore[attr-defined]

    def lost(key: str, data: bytes) -> None:
        late.append((key, data))
        raise OutcomeUnknownError("no answer")

    store.inner.create = lost  # type: ignore[attr-defined]
    with pytest.raises(OutcomeUnknownError):
        volume.flush(B, S1)
    store.inner.create = inner  # type: ignore[attr-defined]
    store.create(*late[0])

    assert volume.flush(B, S1) == 6
    assert S3Volume(store).read(B, S1, 0, 100) == b"abcdef"


@pytest.mark.parametrize("ends", ["sealed", "deleted", "made again"])
def test_a_writer_that_was_away_is_fenced_although_its_next_index_is_old(store: Store, ends: str) -> None:
    writer, other = written(store, b"abc"), S3Volume(store)
    writer.append(B, S1, 3, b"lost")
    other.fence(B, S2, S1)
    other.finish(B, S2, 3, WRITING)
    for piece in (b"d" * LARGE, b"e"):
        flush(other, S2, other.stat(B).length_bytes, piece)
    other.finish(B, S2, 4 + LARGE, SEALED)
    if ends != "sealed":
        assert other.delete(B, S2)
    if ends == "made again":
        other.create(B, S3)

    with pytest.raises((FencedError, ObjectNotFoundError)):
        writer.flush(B, S1)
    if ends == "sealed":
        assert S3Volume(store).read(B, S2, 0, 100) == b"abc" + b"d" * LARGE + b"e"
    if ends == "made again":
        assert S3Volume(store).stat(B).length_bytes == 0


@pytest.mark.parametrize("is_large", [False, True])
def test_a_sealed_replica_of_small_segments_is_one_object(
    store: Store, monkeypatch: pytest.MonkeyPatch, is_large: bool
) -> None:
    for module in (s3_volume, stored_pieces):
        monkeypatch.setattr(module, "SEGMENT_BYTES", LARGE)
    pieces = [b"a" * LARGE, b"b" * LARGE, *([] if is_large else [b"c", b"d", b"e"]), b"f" * 2]
    whole = b"".join(pieces)
    volume, reader = written(store, *pieces), S3Volume(store)
    assert reader.read(B, S1, 0, 1000) == whole
    volume.finish(B, S1, len(whole), SEALED)

    listed = [found for page in store.pages() for found in page if found.size != HEADER_BYTES]
    keys = [found.key for found in listed if found.key != "volume.id"]
    assert {key.partition("/")[0] for key in keys} == {"segments" if is_large else "composed"}
    assert len(keys) == (len(pieces) if is_large else 1)
    for one in (reader, S3Volume(store)):
        for offset in range(len(whole)):
            assert one.read(B, S1, offset, LARGE) == whole[offset : offset + LARGE]


def test_damaged_bytes_are_never_served(tmp_path: Path, store: Store) -> None:
    written(store, b"abcdef")
    (path,) = list((tmp_path / "bucket").rglob("segments/*/*1"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(MalformedRecordError, match="checksum"):
        S3Volume(store).read(B, S1, 0, 6)
    path = path.with_name(f"{0:010d}")
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    with pytest.raises(MalformedRecordError, match="header is damaged"):
        S3Volume(store).stat(B)
    assert "header is damaged" in S3Volume(store).replicas(None, 1)[0].damage


def test_damage_in_a_composed_object_is_never_served(tmp_path: Path, store: Store) -> None:
    volume = written(store, b"a" * LARGE, b"b")
    volume.finish(B, S1, LARGE + 1, SEALED)
    (path,) = (tmp_path / "bucket").rglob("composed/*/*")
    data = path.read_bytes()
    for at in (0, LARGE, LARGE + 1):
        path.write_bytes(data[:at] + b"?" + data[at + 1 :])
        with pytest.raises(MalformedRecordError, match="checksum"):
            S3Volume(store).read(B, S1, 0, 99)


@pytest.mark.parametrize("damaged", ["first", "newest", "missing"])
def test_a_replica_whose_control_record_is_damaged_is_deleted_unless_another_one_is_newer(
    tmp_path: Path, store: Store, damaged: str
) -> None:
    volume = written(store, b"abc")
    volume.fence(B, S2, S1)
    paths = sorted((tmp_path / "bucket").rglob("segments/*/*"))
    if damaged == "missing":
        paths[0].unlink()
    else:
        path = paths[-1 if damaged == "newest" else 0]
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    other = S3Volume(store)
    assert damaged == "newest" or not other.delete(B, S1)
    with pytest.raises(MalformedRecordError):
        other.stat(B)
    assert other.delete(B, S2)
    assert (other.stat(B), S3Volume(store).stat(B), other.usage().used_bytes) == (None, None, 0)
    volume.append(B, S2, 3, b"late")
    with pytest.raises(ObjectNotFoundError):
        volume.flush(B, S2)


@pytest.mark.parametrize("length", [2, 6])
def test_a_composition_that_was_not_committed_is_read_at_the_older_stamp_by_any_process(
    store: Store, length: int
) -> None:
    volume = written(store, b"abc")
    reader = S3Volume(store)
    assert reader.read(B, S1, 0, 9) == b"abc"
    flush(volume, S1, 3, b"def")
    volume.fence(B, S2, S1)
    if length < 6:
        volume.trim(B, S2, length)
    volume.append(B, S2, length, b"XY")
    volume.finish(B, S2, length + 2, SEALED)

    for one in (volume, reader, S3Volume(store)):
        assert one.read(B, S1, 0, 9) == b"abcdef"[:length]
        with pytest.raises(StaleReplicaError):
            one.read(B, S3, 0, 9)


def test_a_version_from_the_future_is_refused_by_name(tmp_path: Path, store: Store) -> None:
    written(store)
    (path,) = list((tmp_path / "bucket").rglob("segments/*/*"))
    data = path.read_bytes()
    path.write_bytes(data[:7] + b"\3" + data[8:])
    with pytest.raises(RecordVersionError, match=re.escape("version 3")):
        S3Volume(store).stat(B)
    with pytest.raises(RecordVersionError):
        S3Volume(store).replicas(None, 1)
    assert path.read_bytes()[7] == 3


def test_a_store_that_replaces_objects_is_refused(tmp_path: Path) -> None:
    class Replacing(LocalStore):
        create = LocalStore.put

    with pytest.raises(UnsupportedStoreError, match="two writers could both append"):
        S3Volume(Replacing(tmp_path / "bucket"))
    assert not (tmp_path / "bucket" / "volume.id").exists()


def test_a_volume_whose_creation_was_lost_has_no_id(tmp_path: Path) -> None:
    class Losing(LocalStore):
        def create(self, key: str, data: bytes) -> ObjectInfo:
            if key == "volume.id":
                raise OutcomeUnknownError("lost on purpose")
            return super().create(key, data)

    with pytest.raises(ObjectNotFoundError):
        S3Volume(Losing(tmp_path / "bucket"))


def test_a_volume_keeps_its_id_and_another_one_in_its_place_is_not_used(tmp_path: Path, store: Store) -> None:
    volume = S3Volume(store)
    assert S3Volume(store, volume=volume.id).id == volume.id
    assert volume.answers()
    for other in (fresh(tmp_path, "empty"), store):
        with pytest.raises(StoreUnavailableError, match="the volume 1234 was registered here"):
            S3Volume(other, volume=VolumeId("1234"))
    assert not (tmp_path / "empty" / "volume.id").exists()
    store.put("volume.id", b"1234")
    assert not volume.answers()
