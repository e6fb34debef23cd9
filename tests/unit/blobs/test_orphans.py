"""Bytes without a row are found and staged, in every store and whichever process left them there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from lockgate.storage_core.blobs.blob_protocol import BlobInfo, NewBlob
from lockgate.storage_core.blobs.keys import UploadSetId, new_blob_key, new_upload_set
from lockgate.storage_core.blobs.reports import Amount, BlobSweepReport, Why
from lockgate.storage_core.blobs.storage.listing_time import LISTED, ListingTime
from lockgate.storage_core.blobs.sweep import orphans
from lockgate.storage_core.blobs.sweep.orphans import recover
from lockgate.storage_core.errors import OutcomeUnknownError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.ids import new_token
from lockgate.storage_core.journal.checkpoint.checkpoints import open_checkpoints
from lockgate.storage_core.journal.checkpoint.restore import restore_in_place
from lockgate.storage_core.journal.safe_mode import leave_safe_mode
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.stores.protocol import in_pages
from tests.support.blobs.server import INTERVAL_S, BlobWorld, key_of, new_server


def stray(world: BlobWorld, upload_set: UploadSetId | None = None, *, is_local: bool = True) -> BlobInfo:
    """Write bytes to the HA store and to the local one without a row in the journal."""
    local = world.server.stores.local
    with local.incoming() as incoming:
        incoming.write(b"stray")
        blob_key = new_blob_key(incoming.digest, upload_set or new_upload_set())
        path = local.place(incoming, "sales", blob_key)
    assert world.server.stores.ha is not None
    world.server.stores.ha.put(path, "sales", blob_key)
    if not is_local:
        local.delete("sales", blob_key)
    return BlobInfo(job_id="sales", blob_key=blob_key, size_bytes=5)


def sweep(world: BlobWorld, *, orphans: bool | None = None, dry_run: bool = False) -> BlobSweepReport:
    return world.server.sweep(dry_run=dry_run, orphans=orphans)


def is_gone(world: BlobWorld, blob: BlobInfo) -> bool:
    found = {world.is_local(blob), world.is_in_ha(blob), world.row(blob) is not None}
    return found == {False}


@pytest.mark.parametrize("is_local", [True, False])
def test_stray_bytes_are_staged_and_deleted_an_interval_later(world: BlobWorld, is_local: bool) -> None:
    blob = stray(world, is_local=is_local)
    report = sweep(world, orphans=True)
    assert report.swept == {Why.ORPHAN: Amount(blobs=1, size_bytes=5)}
    assert report.deleted == Amount()
    world.clock.sleep(INTERVAL_S)
    assert sweep(world).deleted.blobs == 1
    assert is_gone(world, blob)


def test_staged_stray_bytes_can_still_be_referenced(world: BlobWorld) -> None:
    blob = stray(world)
    sweep(world, orphans=True)
    world.server.refer(*key_of(blob), "viewer:1")
    world.clock.sleep(10 * INTERVAL_S)
    sweep(world)
    assert world.server.get(*key_of(blob)) == b"stray"


def test_bytes_that_an_open_set_may_still_record_are_kept_and_checked_again_later(world: BlobWorld) -> None:
    upload_set = world.server.begin_set("sales")
    blob = stray(world, upload_set)
    assert sweep(world, orphans=True).swept == {}
    assert world.row(blob) is None
    world.server.complete_set(upload_set)
    assert sweep(world).swept == {Why.ORPHAN: Amount(blobs=1, size_bytes=5)}


def test_a_listing_that_finds_a_put_between_its_bytes_and_its_row_counts_once_the_row_exists(
    world: BlobWorld,
) -> None:
    new = NewBlob(owners=("job",))
    with world.server.ingest.receiving("sales", new) as arriving:
        arriving.write(b"under way")
        placed = world.server.ingest.store(arriving, "sales", new)

        def record(step: str, *_: int) -> None:
            if step == "list":
                world.server.ingest.record(placed)

        assert world.server.sweep(dry_run=False, orphans=True, progress=record).swept == {}
    assert not sweep(world).sought_orphans


def test_foreign_files_and_objects_are_left_untouched(world: BlobWorld) -> None:
    folder = world.server.stores.local.path / "lost found"
    folder.mkdir(parents=True)
    (folder / "file").touch()
    assert world.store is not None
    world.store.put("other/place/object", b"foreign")
    world.store.begin_upload("other/upload", new_token())
    report = sweep(world, orphans=True)
    assert (report.swept, report.aborted_uploads) == ({}, 0)
    assert (folder / "file").exists()
    assert world.store.get("other/place/object") == b"foreign"


def test_a_listing_is_due_first_and_then_once_a_day(world: BlobWorld) -> None:
    assert sweep(world).sought_orphans
    for _ in range(47):
        world.clock.sleep(INTERVAL_S)
        world.server.sets.renewer.renew()
        assert not sweep(world).sought_orphans
    world.clock.sleep(INTERVAL_S)
    assert sweep(world).sought_orphans


@pytest.mark.parametrize("text", ["", "99999999999999 1"])
def test_an_impossible_time_of_the_last_listing_makes_a_listing_due(world: BlobWorld, text: str) -> None:
    sweep(world)
    (world.server.stores.local.path / LISTED).write_text(text)
    assert sweep(world).sought_orphans
    assert not sweep(world).sought_orphans


def test_a_listing_during_which_bytes_were_left_behind_does_not_count(
    world: BlobWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.server.put(b"known", owners=["viewer:1"])

    def in_pages_while_bytes_are_left_behind(listed: Iterator[Any], size: int) -> Iterator[Sequence[Any]]:
        for page in in_pages(listed, size):
            yield page
            ListingTime(world.server.stores.local.path).forget()

    with monkeypatch.context() as patch:
        patch.setattr(orphans, "in_pages", in_pages_while_bytes_are_left_behind)
        assert sweep(world).sought_orphans
    assert sweep(world).sought_orphans
    assert not sweep(world).sought_orphans


def test_a_listing_is_due_when_a_restored_journal_leaves_safe_mode(world: BlobWorld, tmp_path: Path) -> None:
    assert sweep(world).sought_orphans
    assert not sweep(world).sought_orphans
    restore_in_place(world.journal, open_checkpoints(load_settings(home=tmp_path / "home")))
    leave_safe_mode(world.journal)
    assert sweep(world, dry_run=True).sought_orphans
    assert sweep(world).sought_orphans
    assert not sweep(world).sought_orphans


def test_the_stores_are_listed_when_an_uploader_was_lost(world: BlobWorld) -> None:
    sweep(world)
    blob = stray(world, world.server.begin_set("sales"))
    assert not sweep(world).sought_orphans
    world.clock.sleep(INTERVAL_S)
    report = sweep(world)
    assert (report.abandoned_sets, report.swept[Why.ORPHAN].blobs) == (1, 1)
    world.clock.sleep(INTERVAL_S)
    sweep(world)
    assert is_gone(world, blob)


def test_a_put_with_an_unknown_outcome_is_swept_while_the_server_runs(
    world: BlobWorld,
) -> None:
    world.server.put(b"before")
    sweep(world)
    FAILPOINTS.arm({"blob-ha.put.after": "lost"})
    with pytest.raises(OutcomeUnknownError):
        world.server.put(b"lost")
    (lost,) = (found for found in world.server.stores.local.blobs("no_job") if found.size_bytes == 4)
    blob = BlobInfo(job_id="no_job", blob_key=lost.blob_key, size_bytes=4)
    after = world.server.put(b"after it", owners=["viewer:1"])
    world.clock.sleep(1_200.0)
    world.server.sets.renewer.renew()
    assert sweep(world).swept == {Why.ORPHAN: Amount(blobs=1, size_bytes=4)}
    world.clock.sleep(INTERVAL_S)
    sweep(world)
    assert is_gone(world, blob)
    assert world.server.get(*key_of(after)) == b"after it"


def test_uploads_that_belong_to_no_open_set_are_aborted(world: BlobWorld) -> None:
    assert world.store is not None
    opened, closed = world.server.begin_set("sales"), new_upload_set()
    for upload_set in (opened, closed):
        world.store.begin_upload(f"sales/{new_blob_key('0' * 64, upload_set)}", new_token())
    assert sweep(world, orphans=True, dry_run=True).aborted_uploads == 1
    assert sweep(world, orphans=True).aborted_uploads == 1
    (left,) = (info for page in world.store.upload_pages() for info in page)
    assert opened in left.key
    world.server.complete_set(opened)
    assert sweep(world).aborted_uploads == 1


def test_bytes_deleted_during_the_listing_are_not_orphans(
    world: BlobWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    with new_server(world.root, world.store, world.journal, world.clock) as publisher:
        log = publisher.put(b"line\n", guarantee="recreatable", use="log", owners=["viewer:1"])

    def in_pages_that_age(listed: Iterator[Any], size: int) -> Iterator[Sequence[Any]]:
        for page in in_pages(listed, size):
            assert key_of(log) in [at.key for at in page]
            world.server.drop(*key_of(log), "viewer:1")
            yield page

    monkeypatch.setattr(orphans, "in_pages", in_pages_that_age)
    assert sweep(world, orphans=True).swept == {}
    assert world.row(log) is None


def test_an_unavailable_ha_store_leaves_the_listing_for_the_next_sweep(world: BlobWorld) -> None:
    blob = stray(world, is_local=False)
    FAILPOINTS.arm({"blob-orphans.list.before": "refuse"})
    report = sweep(world)
    assert not report.sought_orphans
    assert "without a row" in report.problems[0]
    assert sweep(world).swept[Why.ORPHAN].blobs == 1
    assert world.staged_s(blob) == world.clock.now_s()


def test_a_dry_run_names_orphans_once_and_changes_nothing(world: BlobWorld) -> None:
    blob = stray(world)
    report = sweep(world, dry_run=True)
    assert report.swept == {Why.ORPHAN: Amount(blobs=1, size_bytes=5)}
    assert world.row(blob) is None
    assert sweep(world).swept == report.swept


def test_a_starting_server_stages_bytes_without_a_row(world: BlobWorld) -> None:
    known = world.server.put(b"library", job_id="sales", owners=["job"])
    blob = stray(world)
    sweep(world, orphans=False)
    world.restart()
    assert recover(world.server.stores) == Amount(blobs=1, size_bytes=5)
    assert recover(world.server.stores) == Amount()
    world.clock.sleep(INTERVAL_S)
    assert not sweep(world, orphans=False).sought_orphans
    assert is_gone(world, blob)
    assert world.server.get(*key_of(known)) == b"library"


def test_files_left_by_a_dead_writer_are_deleted_by_the_next_sweep(world: BlobWorld) -> None:
    left = world.server.stores.local.path / ".incoming" / ("0" * 32)
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    with world.server.stores.local.incoming() as incoming:
        sweep(world)
        assert incoming.path.exists()
    assert not left.exists()
