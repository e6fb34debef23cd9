"""Replaced files that the store refuses to delete: reported, and tried again until they are gone."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lockgate.storage_core.commit.destination.kept_files import set_history_rule
from lockgate.storage_core.commit.publish.commit_context import read_file_results
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.job_listing import list_job_folders
from lockgate.storage_core.commit.records.log_records import HistoryRule
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.commit.recovery.expired_jobs import expired_jobs
from lockgate.storage_core.commit.recovery.recover import recover_job
from lockgate.storage_core.commit.recovery.registry_rebuild import rescan
from lockgate.storage_core.commit.recovery.upload_sweep import sweep_uploads
from lockgate.storage_core.commit.registry.rows import Job as RegisteredJob
from lockgate.storage_core.commit.revert_to_turn import revert_to_turn
from lockgate.storage_core.errors import AccessDeniedError, InvalidInputError, LockgateError
from lockgate.storage_core.ids import JobId
from lockgate.storage_core.stores.local.store import LocalStore
from lockgate.storage_core.stores.open_store import canonical_url
from lockgate.storage_core.stores.s3.store import S3Store
from tests.support.commit.destination import World, plain, write
from tests.support.s3.destination import s3_world
from tests.support.web.jobs import get

OLD, NEW = {"old.csv": b"old", "older.csv": b"older"}, {"new.csv": b"new"}
DENIED = AccessDeniedError("DeleteObject: S3 answered AccessDenied")


@contextmanager
def undeletable(*names: str, error: LockgateError = DENIED) -> Iterator[None]:
    """Let the store refuse to delete these files, whatever their short id."""
    delete = LocalStore.delete

    def refuse(store: LocalStore, key: str, *, if_version: str | None = None) -> None:
        if plain(key) in names:
            raise error
        delete(store, key, if_version=if_version)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(LocalStore, "delete", refuse)
        yield


def results_of(world: World, job_id: str) -> dict[str, str]:
    folder = JobFolder(world.store, JobId(job_id))
    return {plain(file.key): file.result for file in read_file_results(folder)}


def recover(world: World, job_id: str) -> str:
    return recover_job(world.url, job_id, settings=world.settings, clock=world.clock).detail


def sweep(world: World, job_id: str) -> str:
    report = sweep_uploads(world.url, dry_run=False, settings=world.settings, clock=world.clock)
    return "; ".join(swept.action for swept in report.jobs if swept.job_id == job_id)


@pytest.mark.parametrize("retry", [recover, sweep])
def test_a_replaced_file_that_cannot_be_deleted_is_reported_and_tried_again_until_it_is_gone(
    world: World, retry: object, caplog: pytest.LogCaptureFixture
) -> None:
    assert callable(retry)
    world.run("old", OLD)
    job = world.open_job("new", mode="replace")
    write(job, "t", NEW)
    with undeletable("old.csv"):
        receipt = job.commit()
        assert (receipt.removed_files, receipt.undeleted_files) == (2, 1)
        assert "1 replaced file is not deleted" in caplog.text
        assert job.phase() is JobPhase.COMMITTED
        assert job.commit() == job.receipt == receipt
        assert set(world.visible()) == {"old.csv", "new.csv"}
        assert [plain(key) for key in world.live()] == ["new.csv"]
        assert "AccessDenied" in retry(world, job.job_id)
        assert results_of(world, job.job_id) == {
            "old.csv": "undeleted",
            "older.csv": "removed",
            "new.csv": "published",
        }

    retry(world, job.job_id)

    assert world.visible() == NEW
    assert results_of(world, job.job_id)["old.csv"] == "removed"
    assert list_job_folders(world.store).others == []


def test_a_later_job_commits_beside_a_file_that_cannot_be_deleted(world: World) -> None:
    world.run("old", OLD)
    with undeletable("old.csv"):
        world.run("new", NEW, mode="replace")
        world.run("newest", {"newest.csv": b"3"}, mode="replace")
    assert set(world.visible()) == {"old.csv", "newest.csv"}
    world.recover()
    assert set(world.visible()) == {"newest.csv"}


def test_the_folder_of_an_old_job_stays_while_it_has_a_file_to_delete(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockgate.storage_core.commit.destination.log.CHECKPOINT_TURNS", 1)
    world.run("first", OLD)
    with undeletable("old.csv"):
        job = world.run("sales", NEW, mode="replace")
        world.run("sales", {"again.csv": b"2"}, mode="replace")
        world.clock.sleep(world.settings.tombstone_s + 1)
        sweep(world, job.job_id)
        assert results_of(world, job.job_id)["old.csv"] == "undeleted"
    sweep(world, job.job_id)
    assert set(world.visible()) == {"again.csv"}
    sweep(world, job.job_id)
    assert job.job_id not in list_job_folders(world.store).jobs


def test_a_file_whose_name_the_store_refuses_stays_with_a_warning_and_its_job_is_done(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.run("old", OLD)
    with undeletable("old.csv", error=InvalidInputError("KeyTooLong")):
        job = world.run("new", NEW, mode="replace")
    assert results_of(world, job.job_id)["old.csv"] == "kept"
    assert "KeyTooLong; programs that list the destination see them; delete them by hand" in caplog.text
    assert list_job_folders(world.store).others == []


def test_a_file_that_another_program_has_open_is_deleted_when_it_is_closed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = os.unlink

    def busy(path: str, *, dir_fd: int | None = None) -> None:
        if plain(path) == "old.csv":
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        unlink(path, dir_fd=dir_fd)

    world.run("old", OLD)
    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", busy)
        job = world.run("new", NEW, mode="replace")
    assert results_of(world, job.job_id)["old.csv"] == "undeleted"
    recover(world, job.job_id)
    assert world.visible() == NEW


def test_a_name_that_a_later_job_has_published_again_is_not_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Versions on S3 are those of the bytes, so a delete by version would delete the later file."""
    delete = S3Store.delete

    def refuse(store: S3Store, key: str, *, if_version: str | None = None) -> None:
        if key == "day.csv":
            raise DENIED
        delete(store, key, if_version=if_version)

    with s3_world(tmp_path, monkeypatch) as s3:
        world = s3.driver
        options = {"unique_filenames": False, "allow_irreversible": True}
        world.run("first", {"day.csv": b"same"}, **options)
        with monkeypatch.context() as patched:
            patched.setattr(S3Store, "delete", refuse)
            job = world.run("second", {"other.csv": b"2"}, mode="replace")
        assert results_of(world, job.job_id)["day.csv"] == "undeleted"
        world.run("third", {"day.csv": b"same"}, **options)
        world.recover()
        assert world.visible() == {"day.csv": b"same", "other.csv": b"2"}
        assert world.live() == world.keys()


def test_the_registry_and_the_page_name_the_job_until_its_files_are_deleted(journal_world: World) -> None:
    def registered() -> str | None:
        with journal_world.journal.reading() as reading:
            row = reading.get(RegisteredJob, canonical_url(journal_world.store), job.job_id)
        return None if row is None else row.attention

    world = journal_world
    world.run("old", OLD)
    with undeletable("old.csv"):
        job = world.run("new", NEW, mode="replace")
    assert registered() == "undeleted files"
    assert list(rescan(world.url, settings=world.settings, clock=world.clock)) == []
    page = get(world, f"/jobs/{job.job_id}")
    assert page["receipt"]["undeleted_files"] == 1
    assert (page["row"]["phase"], page["row"]["needs"]) == ("committed", "you")
    assert "programs that list the destination see old and new rows" in page["summary"]
    [expired] = expired_jobs(world.settings, world.clock).expired

    recover(world, expired.job_id)

    assert registered() is None
    assert expired_jobs(world.settings, world.clock).expired == ()
    page = get(world, f"/jobs/{job.job_id}")
    assert (page["receipt"]["undeleted_files"], page["row"]["needs"]) == (0, "nothing")
    assert world.visible() == NEW


@pytest.mark.parametrize("retry", [recover, sweep])
def test_a_file_that_a_revert_has_made_live_again_is_not_deleted_late(
    world: World, retry: Callable[[World, str], str]
) -> None:
    world.run("first", OLD)
    with undeletable(*OLD):
        receipt = world.run("second", NEW, mode="replace")
    set_history_rule(world.store, HistoryRule(keep_s=0, keep_turns=10))
    revert_to_turn(world.url, 1, settings=world.settings, clock=world.clock)
    retry(world, receipt.job_id)
    assert {plain(key) for key in world.live()} == set(OLD)
    assert world.live() == world.keys()
    assert set(results_of(world, receipt.job_id).values()) == {"retained", "published"}
