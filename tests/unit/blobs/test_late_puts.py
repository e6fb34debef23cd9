"""A put that ends after its job is not recorded, and does not keep ended jobs remembered for ever."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lockgate.storage_core.blobs.blob_protocol import BlobInfo, NewBlob
from lockgate.storage_core.blobs.keys import upload_set_of
from lockgate.storage_core.blobs.registry.blob_rows import BlobJob, UploadSet
from lockgate.storage_core.blobs.server.ingest import LONG_PUT_BYTES
from lockgate.storage_core.blobs.server.open_upload_sets import HARD_S
from lockgate.storage_core.errors import FencedError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.journal.entries.lease_entries import Lease
from tests.support.blobs.remains import everything
from tests.support.blobs.server import INTERVAL_S, BlobWorld

DATA = b"bytes of a blob " * 1_000
BEAT_S = INTERVAL_S / 3


def intervals_pass(world: BlobWorld, number: int) -> None:
    """Advance the clock by intervals while a live server renews its leases and sweeps."""
    for _ in range(3 * number):
        world.clock.sleep(BEAT_S)
        world.server.sets.renewer.renew()
        world.server.sweep(dry_run=False)


def open_sets(world: BlobWorld) -> list[str]:
    with world.journal.reading() as reading:
        assert len(reading.where(Lease, {})) == len(reading.where(UploadSet, {}))
        return [one.upload_set for one in reading.where(UploadSet, {})]


def is_remembered(world: BlobWorld, job_id: str) -> bool:
    with world.journal.reading() as reading:
        return reading.get(BlobJob, job_id) is not None


def test_a_put_that_ends_hours_after_its_job_is_refused_and_leaves_nothing(world: BlobWorld) -> None:
    def slow() -> Iterator[bytes]:
        yield DATA
        world.server.finish("sales")
        intervals_pass(world, 5)
        yield DATA

    with pytest.raises(FencedError, match="has ended"):
        world.server.put(slow(), job_id="sales", owners=["viewer:1"])
    assert everything(world) == []
    world.server.sweep(dry_run=False)
    assert not is_remembered(world, "sales")


def test_a_large_put_for_an_ended_job_is_refused_before_its_bytes_are_read(world: BlobWorld) -> None:
    def unread() -> Iterator[bytes]:
        pytest.fail("bytes were taken")
        yield DATA

    world.server.finish("sales")
    with pytest.raises(FencedError, match="has ended"):
        world.server.put(unread(), job_id="sales", owners=["viewer:1"])
    with pytest.raises(FencedError, match="has ended"):
        world.server.put(bytes(LONG_PUT_BYTES), job_id="sales", owners=["viewer:1"])
    assert everything(world) == []


def test_an_old_set_accepts_no_new_puts_and_is_completed_after_its_last_put(
    world: BlobWorld,
) -> None:
    others: list[BlobInfo] = []

    def slow() -> Iterator[bytes]:
        for _ in range(3):
            others.append(world.server.put(b"another", job_id="sales", owners=["viewer:1"]))
            yield DATA
            intervals_pass(world, 1)

    blob = world.server.put(slow(), job_id="sales", owners=["viewer:1"])
    sets = [upload_set_of(other.blob_key) for other in others]
    assert sets[0] == upload_set_of(blob.blob_key)
    assert len(set(sets)) == 3
    assert set(open_sets(world)) <= {sets[-1]}
    assert len(world.server.references(owner="viewer:1")) == 4


def test_a_set_lapses_if_the_journal_is_unavailable_at_its_end(world: BlobWorld) -> None:
    upload_set = upload_set_of(world.server.put(b"before").blob_key)
    world.clock.sleep(INTERVAL_S / 2)
    world.server.sets.renewer.renew()
    world.clock.sleep(INTERVAL_S / 2)
    FAILPOINTS.arm({"idle.journal-write.before": "refuse"})
    world.server.sets.own.end_old()
    assert upload_set_of(world.server.put(b"after").blob_key) != upload_set
    assert upload_set in open_sets(world)
    world.server.sweep(dry_run=False)
    world.clock.sleep(HARD_S)
    world.server.sets.renewer.renew()
    world.server.sweep(dry_run=False)
    assert upload_set not in open_sets(world)


@pytest.mark.parametrize("is_swept", [False, True])
def test_a_server_that_was_suspended_keeps_its_set_unless_a_sweep_has_given_it_up(
    world: BlobWorld, is_swept: bool
) -> None:
    before = upload_set_of(world.server.put(b"before").blob_key)
    world.server.sweep(dry_run=False)
    world.clock.sleep(HARD_S)
    if is_swept:
        world.server.sweep(dry_run=False)
    world.server.sets.renewer.renew()
    after = world.server.put(b"after", owners=["viewer:1"])
    assert (upload_set_of(after.blob_key) != before) == is_swept
    assert open_sets(world) == [upload_set_of(after.blob_key)]
    world.server.sweep(dry_run=False)
    assert open_sets(world) == [upload_set_of(after.blob_key)]


def test_a_put_whose_set_was_given_up_leaves_nothing_although_the_journal_cannot_be_read(
    world: BlobWorld,
) -> None:
    new = NewBlob(owners=("viewer:1",))
    with world.server.ingest.receiving("sales", new) as arriving:
        arriving.write(DATA)
        world.server.sweep(dry_run=False)
        world.clock.sleep(HARD_S)
        world.server.sweep(dry_run=False)
        FAILPOINTS.arm({"blob-put.journal-read.before": "refuse"})
        with pytest.raises(FencedError, match="was given up"):
            world.server.ingest.keep(arriving, "sales", new)
        FAILPOINTS.arm({})
    assert everything(world) == []
