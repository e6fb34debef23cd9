"""Verification checks kept blobs in both stores, reports faults and heals them from the intact copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockgate.storage_core.blobs.blob_protocol import BlobInfo
from lockgate.storage_core.blobs.registry.removals import MarkDeleting
from lockgate.storage_core.blobs.reports import BlobFinding, Copy, Fault, VerifiedPage
from lockgate.storage_core.blobs.sweep import verify_copies as verifying
from tests.support.blobs.server import INTERVAL_S, BlobWorld, damage, key_of


def local_file(world: BlobWorld, blob: BlobInfo) -> Path:
    return world.server.stores.local.path_of(*key_of(blob))


def ha_file(world: BlobWorld, blob: BlobInfo) -> Path:
    return world.root / "ha" / blob.job_id / blob.blob_key


def kept(world: BlobWorld, data: bytes = b"some bytes", **options: object) -> BlobInfo:
    return world.server.put(data, job_id="sales", name="lib.py", owners=["job"], **options)  # type: ignore[arg-type]


def only(verified: VerifiedPage) -> BlobFinding:
    (finding,) = verified.findings
    return finding


def test_a_file_missing_only_in_the_local_store_is_not_an_error(world: BlobWorld) -> None:
    local_file(world, kept(world)).unlink()
    assert world.server.verify(deep=True).findings == ()


def test_an_object_missing_in_the_ha_store_is_an_error_and_is_healed(world: BlobWorld) -> None:
    blob = kept(world)
    ha_file(world, blob).unlink()
    found = only(world.server.verify())
    assert (found.name, found.faults, found.is_lost) == ("lib.py", {Copy.HA: Fault.MISSING}, False)
    assert only(world.server.verify(heal=True)).is_healed
    assert ha_file(world, blob).read_bytes() == b"some bytes"
    assert world.server.verify(deep=True).findings == ()


@pytest.mark.parametrize("copy", list(Copy))
def test_a_flipped_bit_is_detected_by_reading_and_healed_from_the_other_copy(
    world: BlobWorld, copy: Copy
) -> None:
    blob = kept(world)
    path = local_file(world, blob) if copy is Copy.LOCAL else ha_file(world, blob)
    damage(path)
    assert world.server.verify().findings == ()
    assert only(world.server.verify(deep=True)).faults == {copy: Fault.DAMAGED}
    assert path.exists()
    assert only(world.server.verify(deep=True, heal=True)).is_healed
    assert path.read_bytes() == b"some bytes"


def test_a_truncated_file_is_detected_by_its_size(world: BlobWorld) -> None:
    blob = kept(world)
    path = ha_file(world, blob)
    path.write_bytes(b"some")
    assert only(world.server.verify()).faults == {Copy.HA: Fault.DAMAGED}
    assert only(world.server.verify(heal=True)).is_healed
    assert path.read_bytes() == b"some bytes"


def test_a_blob_with_two_damaged_copies_is_reported_as_lost(world: BlobWorld) -> None:
    blob = kept(world)
    damage(local_file(world, blob))
    ha_file(world, blob).unlink()
    found = only(world.server.verify(deep=True, heal=True))
    assert found.is_lost
    assert not found.is_healed
    assert found.faults == {Copy.LOCAL: Fault.DAMAGED, Copy.HA: Fault.MISSING}


def test_blobs_about_to_be_deleted_are_not_verified(world: BlobWorld) -> None:
    marked = world.server.put(b"unneeded")
    kept(world)
    world.clock.sleep(INTERVAL_S)
    world.journal.apply(MarkDeleting(job_id=marked.job_id, blob_key=marked.blob_key, staged_for_s=INTERVAL_S))
    local_file(world, marked).unlink()
    world.server.finish("sales")
    found = world.server.verify()
    assert (found.blobs, found.findings) == (0, ())
    assert found.after is not None


def test_a_blob_found_in_only_one_store_gets_its_other_copy_once_it_is_referenced(world: BlobWorld) -> None:
    blob = world.server.put(b"unneeded")
    ha_file(world, blob).unlink()
    world.server.refer(*key_of(blob), "viewer:1")
    assert only(world.server.verify()).faults == {Copy.HA: Fault.MISSING}
    assert only(world.server.verify(heal=True)).is_healed
    assert ha_file(world, blob).read_bytes() == b"unneeded"


def test_reading_pages_of_blobs_can_stop_early(world: BlobWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifying, "DEEP_BYTES", 15)
    for _ in range(3):
        kept(world)
    first = world.server.verify("sales", deep=True)
    assert (first.blobs, first.size_bytes) == (2, 20)
    assert first.after is not None
    assert world.server.verify("sales", after=first.after, deep=True).blobs == 1
    assert world.server.verify("other", deep=True).blobs == 0
