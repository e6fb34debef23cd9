"""Unreferenced blobs live one to two intervals, referenced ones for ever; a final job leaves nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockgate.storage_core.blobs.blob_protocol import BlobInfo
from lockgate.storage_core.blobs.registry.blob_rows import BlobJob
from lockgate.storage_core.blobs.registry.references import FinishBlobJob
from lockgate.storage_core.blobs.registry.removals import MarkDeleting
from lockgate.storage_core.blobs.reports import Amount, BlobSweepReport, Why
from lockgate.storage_core.blobs.sweep import sweep as sweeping
from lockgate.storage_core.concurrency import in_parallel
from lockgate.storage_core.errors import ObjectNotFoundError, SafeModeError, StoreUnavailableError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.journal import safe_mode
from lockgate.storage_core.journal.checkpoint.checkpoints import open_checkpoints
from lockgate.storage_core.journal.checkpoint.restore import restore_in_place
from lockgate.storage_core.journal.safe_mode import leave_safe_mode
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.stores.instrumented import instrument
from lockgate.storage_core.stores.local.store import LocalStore
from tests.support.blobs.server import INTERVAL_S, BlobWorld, blob_world, key_of


@pytest.fixture
def world(tmp_path: Path, journal_url: str) -> Iterator[BlobWorld]:
    with blob_world(tmp_path, journal_url, store=instrument(LocalStore(tmp_path / "ha"))) as world:
        yield world


def sweep(world: BlobWorld, *, dry_run: bool = False) -> BlobSweepReport:
    return world.server.sweep(dry_run=dry_run)


def is_there(world: BlobWorld, blob: BlobInfo) -> bool:
    """Return whether a blob exists; its bytes and its row exist together or not at all."""
    found = {world.is_local(blob), world.is_in_ha(blob), world.row(blob) is not None}
    assert len(found) == 1
    return found.pop()


def test_an_unreferenced_blob_is_kept_for_a_whole_interval_and_deleted_at_its_end(world: BlobWorld) -> None:
    blob = world.server.put(b"unneeded")
    world.clock.sleep(INTERVAL_S - 1)
    assert sweep(world).deleted == Amount()
    assert is_there(world, blob)
    world.clock.sleep(1)
    report = sweep(world)
    assert report.swept == {Why.STAGED: Amount(blobs=1, size_bytes=8)}
    assert [(one.job_id, one.blob_key) for one in report.blobs] == [key_of(blob)]
    assert not is_there(world, blob)


@pytest.mark.parametrize(("rhythm_s", "begins_s"), [(INTERVAL_S, 1_799.0), (61.0, 1.0)])
def test_an_unreferenced_blob_is_kept_for_one_to_two_intervals_at_any_sweep_frequency(
    world: BlobWorld, rhythm_s: float, begins_s: float
) -> None:
    blob, put_s = world.server.put(b"unneeded"), world.clock.now_s()
    world.clock.sleep(begins_s)
    while is_there(world, blob):
        sweep(world)
        gone_s = world.clock.now_s()
        world.clock.sleep(rhythm_s)
    assert INTERVAL_S <= gone_s - put_s <= 2 * INTERVAL_S


def test_a_new_reference_takes_a_blob_out_of_staging(world: BlobWorld) -> None:
    blob = world.server.put(b"wanted after all")
    world.clock.sleep(INTERVAL_S - 1)
    world.server.refer(*key_of(blob), "viewer:1")
    world.clock.sleep(10 * INTERVAL_S)
    assert sweep(world).deleted == Amount()
    assert is_there(world, blob)
    world.restart()
    world.server.drop(*key_of(blob), "viewer:1")
    world.clock.sleep(INTERVAL_S - 1)
    sweep(world)
    assert is_there(world, blob)


def test_a_blob_about_to_be_deleted_accepts_no_reference(world: BlobWorld) -> None:
    blob = world.server.put(b"too late", job_id="sales")
    world.clock.sleep(INTERVAL_S)
    world.journal.apply(MarkDeleting(job_id=blob.job_id, blob_key=blob.blob_key, staged_for_s=INTERVAL_S))
    with pytest.raises(ObjectNotFoundError, match="upload it again"):
        world.server.refer(*key_of(blob), "viewer:1")
    with pytest.raises(ObjectNotFoundError, match="upload it again"):
        world.server.submit("sales", [blob.blob_key])
    assert sweep(world).deleted.blobs == 1


def test_a_reference_that_its_owner_never_uses_lapses(world: BlobWorld) -> None:
    blob = world.server.put(b"message", owners=["receiver:1", "receiver:2"], lapse_s=3_600.0)
    world.server.refer(*key_of(blob), "receiver:2")  # this one stays
    world.clock.sleep(3_600.0)
    assert sweep(world).lapsed_references == 1
    assert world.owners(blob) == ["receiver:2"]
    world.server.drop(*key_of(blob), "receiver:2")
    world.clock.sleep(INTERVAL_S)
    assert sweep(world).deleted.blobs == 1


def test_a_set_of_a_dead_uploader_is_given_up_and_its_blobs_are_deleted(world: BlobWorld) -> None:
    upload_set = world.server.begin_set("sales")
    blob = world.server.put(b"half of it", job_id="sales", upload_set=upload_set)
    world.clock.sleep(1_199.0)
    assert sweep(world).abandoned_sets == 0  # it is seen for the first time
    world.clock.sleep(1_199.0)
    assert sweep(world).abandoned_sets == 0
    world.clock.sleep(1.0)
    assert sweep(world).abandoned_sets == 1
    assert world.staged_s(blob) == world.clock.now_s()
    world.clock.sleep(INTERVAL_S)
    assert sweep(world).deleted.blobs == 1
    assert not is_there(world, blob)


def test_a_final_job_leaves_nothing_even_if_bytes_arrived_late(world: BlobWorld) -> None:
    kept = world.server.put(b"library", job_id="sales", owners=["job", "viewer:1"])
    world.server.finish("sales")
    late = world.server.stores.local.path_of(*key_of(kept))
    late.parent.mkdir()
    late.write_bytes(b"library")
    assert world.server.stores.ha is not None
    world.server.stores.ha.put(late, *key_of(kept))

    report = sweep(world)

    assert (report.final_jobs, report.forgotten_jobs) == (1, 0)
    assert report.swept == {Why.FINAL: Amount(blobs=1, size_bytes=7)}
    assert not is_there(world, kept)
    assert world.owners(kept) == []
    assert not late.parent.exists()
    world.clock.sleep(INTERVAL_S)
    assert sweep(world).forgotten_jobs == 1
    with world.journal.reading() as reading:
        assert reading.get(BlobJob, "sales") is None


def test_a_final_job_is_remembered_while_a_set_for_it_is_open(world: BlobWorld) -> None:
    upload_set = world.server.begin_set("sales")
    world.server.finish("sales")
    for _ in range(3):
        world.clock.sleep(1_000.0)
        world.server.sets.renewer.renew()
        assert sweep(world).forgotten_jobs == 0
    world.server.complete_set(upload_set)
    assert sweep(world).forgotten_jobs == 1


def test_a_job_removed_by_a_concurrent_sweep_costs_a_new_job_of_its_id_no_blobs(
    world: BlobWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.server.finish("sales")
    world.clock.sleep(INTERVAL_S)
    begun: list[BlobInfo] = []

    def deleted_slowly(*arguments: Any) -> Iterator[Any]:
        done = list(in_parallel(*arguments))
        monkeypatch.setattr(sweeping, "in_parallel", in_parallel)
        assert sweep(world).forgotten_jobs == 1
        begun.append(world.server.put(b"library", job_id="sales"))
        yield from done

    monkeypatch.setattr(sweeping, "in_parallel", deleted_slowly)
    assert sweep(world).deleted == Amount()
    world.server.submit("sales", [begun[0].blob_key])


def test_one_sweep_deletes_more_than_a_page_and_its_report_stays_small(
    world: BlobWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockgate.storage_core.blobs.registry.queries.PAGE", 3)
    monkeypatch.setattr("lockgate.storage_core.blobs.reports.LISTED", 4)
    for number in range(8):
        world.server.put(b"%d" % number, guarantee="recreatable")
    world.server.put(b"x", owners=["viewer:1"], lapse_s=1.0)
    world.clock.sleep(INTERVAL_S)

    report = sweep(world)

    assert report.deleted == Amount(blobs=8, size_bytes=8)
    assert len(report.blobs) == 4
    assert report.lapsed_references == 1


def test_a_dry_run_changes_nothing_and_names_the_blobs_that_would_be_deleted(world: BlobWorld) -> None:
    staged = world.server.put(b"unneeded")
    final = world.server.put(b"library", job_id="sales", owners=["job"])
    world.server.put(b"message", owners=["receiver:1"], lapse_s=60.0)
    world.server.begin_set("later")
    assert sweep(world, dry_run=True).abandoned_sets == 0
    world.clock.sleep(INTERVAL_S)
    world.server.finish("sales")
    before = world.journal.status().stamp

    report = sweep(world, dry_run=True)

    assert report.is_dry_run
    assert report.swept == {
        Why.STAGED: Amount(blobs=1, size_bytes=8),
        Why.FINAL: Amount(blobs=1, size_bytes=7),
    }
    assert {(one.job_id, one.blob_key, one.why) for one in report.blobs} == {
        (*key_of(staged), Why.STAGED),
        (*key_of(final), Why.FINAL),
    }
    assert (report.lapsed_references, report.abandoned_sets, report.final_jobs) == (1, 2, 1)
    assert world.journal.status().stamp == before
    assert is_there(world, staged)


def test_nothing_is_swept_in_safe_mode_and_a_dry_run_still_reports(world: BlobWorld, tmp_path: Path) -> None:
    blob = world.server.put(b"unneeded")
    world.clock.sleep(INTERVAL_S)
    restore_in_place(world.journal, open_checkpoints(load_settings(home=tmp_path / "home")))
    with pytest.raises(SafeModeError, match="leave-safe-mode"):
        sweep(world)
    assert is_there(world, blob)
    assert sweep(world, dry_run=True).deleted.blobs == 1


def test_blobs_staged_before_a_restore_are_kept_for_an_interval_after_safe_mode(
    world: BlobWorld, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(safe_mode, "PAGE", 2)
    blobs = [world.server.put(b"%d" % number, job_id="sales") for number in range(5)]
    world.clock.sleep(10 * INTERVAL_S)
    restore_in_place(world.journal, open_checkpoints(load_settings(home=tmp_path / "home")))
    leave_safe_mode(world.journal)
    world.clock.sleep(INTERVAL_S - 1)
    assert sweep(world).deleted == Amount()
    world.server.submit("sales", [blobs[0].blob_key])
    world.clock.sleep(1)
    assert sweep(world).deleted.blobs == 4
    assert is_there(world, blobs[0])


def test_in_safe_mode_no_job_is_ended_and_none_of_its_blobs_is_deleted(
    world: BlobWorld, tmp_path: Path
) -> None:
    blob = world.server.put(b"library", job_id="sales", owners=["job"])
    restore_in_place(world.journal, open_checkpoints(load_settings(home=tmp_path / "home")))
    with pytest.raises(SafeModeError, match="ending job sales"):
        world.server.finish("sales")
    assert is_there(world, blob)
    leave_safe_mode(world.journal)
    assert sweep(world).deleted == Amount()
    world.server.finish("sales")
    assert not world.is_local(blob)


@pytest.mark.parametrize("action", ["refuse", "lost"])
def test_an_object_that_the_ha_store_does_not_delete_stays_marked_for_the_next_sweep(
    world: BlobWorld, action: str
) -> None:
    blob = world.server.put(b"unneeded")
    message = world.server.put(b"message", guarantee="recreatable")
    world.clock.sleep(INTERVAL_S)
    FAILPOINTS.arm({"blob-ha-delete.delete_many.before": action})

    report = sweep(world)

    assert report.left == 1
    assert "on purpose" in report.problems[0]
    assert report.deleted == Amount(blobs=1, size_bytes=7)
    assert world.row(message) is None
    row = world.row(blob)
    assert row is not None
    assert row.deleting_s == world.clock.now_s()
    world.clock.sleep(60)
    assert sweep(world).swept == {Why.MARKED: Amount(blobs=1, size_bytes=8)}
    assert not is_there(world, blob)


def test_a_local_file_that_cannot_be_deleted_does_not_block_the_others(
    world: BlobWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, other = world.server.put(b"stuck"), world.server.put(b"other")
    world.clock.sleep(INTERVAL_S)
    delete = world.server.stores.local.delete

    def refusing(job_id: str, blob_key: str) -> None:
        if blob_key == stuck.blob_key:
            raise StoreUnavailableError("the disk said no")
        delete(job_id, other.blob_key)

    monkeypatch.setattr(world.server.stores.local, "delete", refusing)

    report = sweep(world)

    assert (report.left, report.problems) == (1, ("the disk said no",))
    assert not is_there(world, other)
    assert is_there(world, stuck)


def test_the_row_of_an_ended_job_is_kept_while_the_ha_store_is_unavailable(world: BlobWorld) -> None:
    world.server.put(b"library", job_id="sales", owners=["job"])
    FAILPOINTS.arm({"blob-ha-delete.list.before": "refuse"})
    with pytest.raises(StoreUnavailableError):
        world.server.finish("sales")
    FAILPOINTS.arm({"blob-ha-delete.list.before": "refuse"})
    report = sweep(world)
    assert report.final_jobs == 0
    assert "job sales" in report.problems[0]
    report = sweep(world)
    assert (report.final_jobs, report.problems) == (1, ())
    assert report.swept == {Why.FINAL: Amount(blobs=1, size_bytes=7)}


def test_a_sweep_retries_after_a_lost_answer_of_the_journal(world: BlobWorld) -> None:
    blob = world.server.put(b"unneeded")
    world.clock.sleep(INTERVAL_S)
    FAILPOINTS.arm({"blob-sweep.journal-write.after": "lost"})
    assert sweep(world).deleted.blobs == 1
    assert not is_there(world, blob)


def test_references_and_pages_of_blobs_can_be_queried(world: BlobWorld) -> None:
    blobs = [world.server.put(data, job_id="sales", owners=["job"]) for data in (b"a", b"b")]
    world.server.refer(*key_of(blobs[0]), "viewer:1")
    page = world.server.page("sales")
    assert [(one.job_id, one.blob_key) for one in page] == sorted(key_of(blob) for blob in blobs)
    assert world.server.page("sales", after=page[-1].key) == []
    assert len(world.server.page()) == 2
    assert [one.owner for one in world.server.references(blob_key=blobs[0].blob_key)] == ["job", "viewer:1"]
    (reference,) = world.server.references(owner="viewer:1")
    assert (reference.job_id, reference.blob_key) == key_of(blobs[0])
    assert len(world.server.references(job_id="sales")) == 3


def test_two_sweeps_at_once_do_no_harm(world: BlobWorld) -> None:
    gone = [world.server.put(b"%d" % number) for number in range(20)]
    kept = [world.server.put(b"%d" % number, owners=["viewer:1"]) for number in range(5)]
    for number in range(5):
        world.server.put(b"library", job_id=f"job-{number}", owners=["job"])
        world.journal.apply(FinishBlobJob(job_id=f"job-{number}"))
    world.clock.sleep(INTERVAL_S)
    world.server.sets.renewer.renew()

    reports = list(in_parallel(lambda _: world.server.sweep(dry_run=False, orphans=True), range(2), 2))

    assert [report.problems for report in reports] == [(), ()]
    assert not any(is_there(world, blob) for blob in gone)
    assert all(is_there(world, blob) for blob in kept)
    assert {blob.job_id for blob in world.server.page()} == {"no_job"}
