"""A blob put into a server is durable, hashes to its key, and is kept exactly as long as it is referenced."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from lockgate.storage_core.blobs.registry.upload_sets import AbandonUpload
from lockgate.storage_core.blobs.server.open_upload_sets import HARD_S
from lockgate.storage_core.blobs.storage import local
from lockgate.storage_core.errors import (
    ConflictError,
    FencedError,
    ObjectNotFoundError,
)
from lockgate.storage_core.journal.entries.lease_entries import Lease
from tests.support.blobs.server import BlobWorld, damage, key_of


def incoming_files(world: BlobWorld) -> list[Path]:
    folder = world.server.stores.local.path / ".incoming"
    return list(folder.iterdir()) if folder.exists() else []


def test_a_put_blob_is_in_both_stores_and_hashes_to_its_key(world: BlobWorld) -> None:
    blob = world.server.put(b"library", job_id="sales", use="library", name="lib.py")
    assert blob.blob_key.startswith(hashlib.sha256(b"library").hexdigest())
    assert world.server.get(*key_of(blob)) == b"library"
    assert world.is_local(blob)
    assert world.is_in_ha(blob)
    assert incoming_files(world) == []


def test_the_same_bytes_put_twice_are_two_blobs(world: BlobWorld) -> None:
    first, second = world.server.put(b"same"), world.server.put(b"same")
    assert first.blob_key != second.blob_key
    assert first.blob_key[:64] == second.blob_key[:64]


def test_a_set_keeps_its_blobs_until_its_completion_stages_them(world: BlobWorld) -> None:
    upload_set = world.server.begin_set("sales")
    blobs = [world.server.put(data, job_id="sales", upload_set=upload_set) for data in (b"a", b"b")]
    assert [world.staged_s(blob) for blob in blobs] == [None, None]
    assert world.server.complete_set(upload_set) == 2
    assert [world.staged_s(blob) for blob in blobs] == [world.clock.now_s()] * 2
    with pytest.raises(FencedError, match="complete"):
        world.server.put(b"late", job_id="sales", upload_set=upload_set)


def test_a_submitted_job_keeps_all_its_blobs_and_one_missing_blob_refuses_the_submission(
    world: BlobWorld,
) -> None:
    blob = world.server.put(b"a", job_id="sales")
    gone = world.server.put(b"b", job_id="other")
    with pytest.raises(ObjectNotFoundError, match="upload it again"):
        world.server.submit("sales", [blob.blob_key, gone.blob_key])
    assert world.owners(blob) == []
    world.server.submit("sales", [blob.blob_key])
    world.server.submit("sales", [blob.blob_key])
    assert world.owners(blob) == ["job"]


def test_a_failed_job_keeps_the_blobs_a_recovery_needs_and_releases_the_rest(world: BlobWorld) -> None:
    kept = world.server.put(b"a", job_id="sales", owners=["job"])
    let_go = world.server.put(b"b", job_id="sales", guarantee="recreatable", owners=["receiver:1"])
    world.server.fail("sales")
    assert world.owners(kept) == ["job"]
    assert world.owners(let_go) == []


def test_dropping_the_last_reference_stages_a_blob_and_a_new_reference_unstages_it(world: BlobWorld) -> None:
    blob = world.server.put(b"a", owners=["viewer:1", "viewer:2"])
    world.server.drop(*key_of(blob), "viewer:1")
    assert world.staged_s(blob) is None
    world.server.drop_owner("viewer:2")
    assert world.staged_s(blob) == world.clock.now_s()
    world.server.refer(*key_of(blob), "viewer:3")
    assert world.staged_s(blob) is None


def test_a_repeated_put_creates_one_blob_and_leaves_one_copy(world: BlobWorld) -> None:
    first = world.server.put(b"a", job_id="sales", owners=["job"], request_id="r1")
    again = world.server.put(b"a", job_id="sales", owners=["job"], request_id="r1")
    assert again == first
    assert [found.blob_key for found in world.server.stores.local.blobs("sales")] == [first.blob_key]
    assert world.server.stores.ha is not None
    assert [found.blob_key for found in world.server.stores.ha.blobs("sales")] == [first.blob_key]
    assert world.server.put(b"a", job_id="other", request_id="r1").blob_key != first.blob_key


def test_completing_a_set_again_under_its_request_id_returns_the_same_result(world: BlobWorld) -> None:
    upload_set = world.server.begin_set("sales")
    world.server.put(b"a", job_id="sales", upload_set=upload_set)
    assert world.server.complete_set(upload_set, request_id="r1") == 1
    assert world.server.complete_set(upload_set, request_id="r1") == 1


def test_another_process_renews_a_set_opened_on_its_behalf(world: BlobWorld) -> None:
    upload_set, stamp = world.server.begin_set_of("uploader", "sales")
    world.clock.now += HARD_S - 1
    assert world.server.renew_sets("uploader", {upload_set: stamp}) == {}
    world.clock.now += HARD_S - 1
    with pytest.raises(ConflictError, match="lives"):
        world.journal.apply(AbandonUpload(upload_set=upload_set))
    world.clock.now += 1
    world.journal.apply(AbandonUpload(upload_set=upload_set))
    assert set(world.server.renew_sets("uploader", {upload_set: stamp})) == {upload_set}


def test_a_refused_set_leaves_no_lease(world: BlobWorld) -> None:
    world.server.finish("sales")
    with pytest.raises(FencedError, match="has ended"):
        world.server.begin_set("sales")
    with world.journal.reading() as reading:
        assert list(reading.where(Lease, {})) == []


def test_the_memory_of_verified_files_is_bounded(world: BlobWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "MAX_VERIFIED", 2)
    blobs = [world.server.put(b"%d" % number) for number in range(5)]
    assert [world.server.get(*key_of(blob)) for blob in blobs] == [b"%d" % number for number in range(5)]
    assert len(world.server.stores.local._verified) == 2
    damage(world.server.stores.local.path_of(*key_of(blobs[0])))
    assert world.server.get(*key_of(blobs[0])) == b"0"
