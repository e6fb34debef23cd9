"""Jobs in a directory: files are published in place; files and folders can have path conflicts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from lockgate.storage_core.commit.job import Job
from lockgate.storage_core.commit.publish.backup_files import RESTORE_TRIES, backup_files
from lockgate.storage_core.commit.publish.commit_context import read_file_results
from lockgate.storage_core.commit.records.codec import digest
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.commit.records.report import FileResult
from lockgate.storage_core.commit.recovery.upload_sweep import sweep_uploads
from lockgate.storage_core.errors import (
    ConflictError,
    InvalidInputError,
    JobFailedError,
    LockgateError,
    OutcomeUnknownError,
    UnsupportedStoreError,
    UploadGoneError,
)
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.ids import JobId
from lockgate.storage_core.stores.local.store import LocalStore
from tests.support.commit.destination import Crash, World, write

RENAMING = ("file-v1", "file-v2")
every_renaming = pytest.mark.parametrize("committer", RENAMING)


def only_file(root: Path) -> Path:
    (found,) = (path for path in root.rglob("*") if path.is_file())
    return found


def visible_file(world: World) -> Path:
    (key,) = world.keys()
    return Path(world.url, key)


@every_renaming
def test_a_pending_file_is_seekable_and_becomes_the_object_without_a_copy(
    world: World, committer: str
) -> None:
    with world.open_job("sales", committer=committer) as job:
        with job.attempt("t", "try-0") as attempt:
            with attempt.open("day=1/a.csv") as file:
                file.write(b"12345")
                file.seek(0)
                file.write(b"9")
            written = only_file(Path(world.url, "_temporary"))
            attempts_own = f"{job.job_id}/{job.job_attempt}/t/try-0"
            assert written == Path(world.url, "_temporary", attempts_own, "day=1/a.csv")
            inode = written.stat().st_ino
        assert not list(Path(world.url, "_temporary", job.job_id).rglob("*.csv"))
        job.commit()
    assert world.visible() == {"day=1/a.csv": b"92345"}
    assert visible_file(world).stat().st_ino == inode


@every_renaming
def test_a_staged_file_is_added_without_a_copy_and_can_be_added_again(
    world: World, committer: str, tmp_path: Path
) -> None:
    staged = tmp_path / "stage" / "a.csv"
    staged.parent.mkdir()
    staged.write_bytes(b"12345")
    with world.open_job("sales", committer=committer) as job:
        for _ in range(2):
            world.clock.sleep(1)
            with job.attempt("t") as attempt:
                attempt.add_file(staged, "a.csv", rows=3, expected_size=5)
        assert staged.read_bytes() == b"12345"
        assert job.commit().rows == 3
    assert visible_file(world).samefile(staged)
    staged.unlink()
    assert world.visible() == {"a.csv": b"12345"}
    assert world.open_uploads() == []


@every_renaming
def test_a_staged_file_on_another_file_system_is_copied(
    world: World, committer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def adopt_file(*_: object) -> None:
        raise UnsupportedStoreError("another file system")

    monkeypatch.setattr(LocalStore, "adopt_file", adopt_file)
    staged = tmp_path / "a.csv"
    staged.write_bytes(b"12345")
    with world.open_job("sales", committer=committer) as job:
        with job.attempt("t") as attempt:
            attempt.add_file(staged, "a.csv", rows=3)
            with attempt.open("b.csv") as file:
                file.write(b"b")
        job.commit()
    assert world.visible() == {"a.csv": b"12345", "b.csv": b"b"}


def test_a_staged_file_whose_size_differs_from_the_declared_one_is_refused(
    world: World, tmp_path: Path
) -> None:
    staged = tmp_path / "a.csv"
    staged.write_bytes(b"12345")
    with world.open_job("sales", committer="file-v1") as job:
        attempt = job.attempt("t")
        with pytest.raises(ConflictError, match="has 5 bytes, not the 4"):
            attempt.add_file(staged, "a.csv", expected_size=4)
        attempt.abort()
        job.abort()
    assert world.open_uploads() == []


def test_a_staged_file_that_is_written_to_after_its_task_commit_reverts_the_job(
    world: World, tmp_path: Path
) -> None:
    staged = tmp_path / "a.csv"
    staged.write_bytes(b"12345")
    with world.open_job("sales", committer="file-v1") as job:
        with job.attempt("t") as attempt:
            attempt.add_file(staged, "a.csv")
        staged.write_bytes(b"changed")
        with pytest.raises(JobFailedError, match="lost for good"):
            job.commit()
    assert (world.visible(), world.open_uploads()) == ({}, [])


@every_renaming
def test_the_end_of_a_job_removes_only_its_own_temporary_files(world: World, committer: str) -> None:
    jobs = [world.open_job(name, committer=committer) for name in ("one", "other")]
    for job in jobs:
        with job.attempt("dead").open("dead.csv") as file:
            file.write(b"1")
    one, other = jobs
    one.abort()
    assert [path.name for path in Path(world.url, "_temporary").iterdir()] == [other.job_id]
    other.commit()
    assert not Path(world.url, "_temporary").exists()
    assert world.visible() == {}


def test_a_temporary_directory_that_is_a_link_is_refused_and_not_followed(
    world: World, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere" / "sales-g1"
    elsewhere.mkdir(parents=True)
    with world.open_job("sales", committer="file-v1") as job:
        Path(world.url, "_temporary").symlink_to(elsewhere.parent)
        attempt = job.attempt("t")
        with pytest.raises(InvalidInputError, match="is a symbolic link"):
            attempt.open("a.csv")
        attempt.abort()
        job.abort()
    assert elsewhere.is_dir()


def test_attempts_can_start_while_other_jobs_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with world.open_job("sales", committer="file-v1") as job:
        mkdir = os.mkdir
        meddled: list[str] = []

        def meddle(path: str, *rest: object, **folder: object) -> None:
            top = Path(world.url, "_temporary")
            if not meddled and Path(path).parent == top and top.exists():
                meddled.append(path)
                top.rmdir()  # the end of another job found the directory empty
            mkdir(path, *rest, **folder)  # type: ignore[arg-type]

        monkeypatch.setattr(os, "mkdir", meddle)
        write(job, "t", {"a.csv": b"1"})
        assert meddled
        job.commit()
    assert world.visible() == {"a.csv": b"1"}


@pytest.mark.parametrize("committer", ["magic", "staging", "partitioned", "file-v1"])
def test_a_file_where_a_job_needs_a_folder_is_detected_before_anything_is_visible(
    world: World, committer: str
) -> None:
    world.run("old", {"old.csv": b"0"})
    (Path(world.url) / "day=1").write_bytes(b"in the way")
    with world.open_job("sales", committer=committer) as job:
        write(job, "t", {"day=1/a.csv": b"1", "b.csv": b"2"})
        with pytest.raises(ConflictError, match=r"day=1 is in the way of day=1/a-\w+\.csv"):
            job.commit()
    assert job.phase() is JobPhase.FAILED
    assert world.visible() == {"old.csv": b"0", "day=1": b"in the way"}
    assert world.open_uploads() == []


def test_a_file_in_the_way_of_an_early_published_one_fails_its_task_commit(world: World) -> None:
    Path(world.url).mkdir()
    (Path(world.url) / "day=1").write_bytes(b"in the way")
    with pytest.raises(InvalidInputError, match="a parent of it is a file"):
        world.run("sales", {"b.csv": b"2", "day=1/a.csv": b"1"}, committer="file-v2")
    assert world.attach("sales-g1").phase() is JobPhase.FAILED
    assert world.visible() == {"day=1": b"in the way"}
    assert world.open_uploads() == []


def test_a_folder_where_a_job_writes_a_file_is_detected_before_anything_is_visible(world: World) -> None:
    (Path(world.url) / "a.csv" / "_empty").mkdir(parents=True)
    with world.open_job("sales", unique_filenames=False) as job:
        write(job, "t", {"a.csv": b"1", "b.csv": b"2"})
        with pytest.raises(ConflictError, match=r"a\.csv/ is in the way of a\.csv"):
            job.commit()
    assert world.visible() == {}


def test_two_tasks_that_use_one_path_as_file_and_as_folder_are_refused(world: World) -> None:
    with world.open_job("sales", unique_filenames=False) as job:
        write(job, "t", {"a": b"1"})
        write(job, "u", {"a/b/c": b"2"})
        with pytest.raises(ConflictError, match="the job writes a and a/b/c"):
            job.commit()
    assert world.visible() == {}
    assert world.open_uploads() == []


OLD = {"x": b"old x", "y/z": b"old z", "y/deep/w": b"old w", "other": b"old"}
NEW = {"x/a": b"new a", "x/b": b"new b", "y": b"new y", "n": b"new n"}
"""New files that replace the file `x` by a folder and the folder `y` by a file."""


def open_merging(world: World, **options: object) -> Job:
    world.run("old", OLD, unique_filenames=False)
    return world.open_job(
        "new", **{"committer": "file-v1", "mode": "replace", "unique_filenames": False, **options}
    )


def results(job: Job) -> Iterable[FileResult]:
    return read_file_results(job._folder)


def lose_upload(world: World, job: Job, path: str) -> None:
    """Abort an upload of the job, so that its commit is reverted."""
    uploads = [file.upload for found in job.pending_sets() for file in found.files if file.path == path]
    with suppress(UploadGoneError):
        world.store.abort_upload(uploads[0].key, uploads[0].upload_id)


def files_aside(world: World) -> list[Path]:
    return [Path(world.url, key) for key in backup_files(JobFolder(world.store, JobId("new-g1")))]


def test_a_replace_by_file_v1_backs_up_old_files_for_folders_and_folders_for_files(world: World) -> None:
    with open_merging(world) as job:
        write(job, "t", NEW)
        job.commit()
    assert world.visible() == NEW
    assert world.live() == world.keys()
    assert files_aside(world) == []
    assert {file.key: (file.result, file.detail) for file in results(job) if file.key in OLD} == {
        **dict.fromkeys(("x", "y/z", "y/deep/w"), ("removed", "it was backed up")),
        "other": ("removed", ""),
    }


def test_a_revert_moves_backups_back(world: World) -> None:
    with open_merging(world) as job:
        write(job, "t", NEW)
        lost = next(file for file in next(job.pending_sets()).files if file.path == "n")

        def lose(name: str) -> None:
            if name == "make-way.move.after" and files_aside(world):
                FAILPOINTS.observer = None
                world.store.abort_upload(lost.key, lost.upload.upload_id)

        FAILPOINTS.observer = lose
        try:
            with pytest.raises(JobFailedError, match="lost for good"):
                job.commit()
        finally:
            FAILPOINTS.observer = None
    assert world.visible() == OLD
    assert world.live() == world.keys()
    assert files_aside(world) == []


def test_a_backup_whose_name_is_taken_is_kept_and_reported(world: World) -> None:
    with open_merging(world) as job:
        write(job, "t", NEW)
        lost = next(file for file in next(job.pending_sets()).files if file.path == "n")

        def meddle(name: str) -> None:
            if name == "revert.abort.before":
                FAILPOINTS.observer = None
                Path(world.url, "x", "foreign").write_bytes(b"foreign")
            elif name == "complete.complete.before":
                world.store.abort_upload(lost.key, lost.upload.upload_id)

        FAILPOINTS.observer = meddle
        try:
            with pytest.raises(JobFailedError, match="lost for good"):
                job.commit()
        finally:
            FAILPOINTS.observer = None
    assert world.visible() == {**{path: OLD[path] for path in OLD if path != "x"}, "x/foreign": b"foreign"}
    (aside,) = files_aside(world)
    assert aside.read_bytes() == OLD["x"]
    (file,) = (file for file in results(job) if file.key == "x")
    assert file.result == "kept"
    assert aside.name in file.detail


@pytest.fixture
def unobserved() -> Iterator[None]:
    """Release all threads that wait at failpoints after the test."""
    yield
    FAILPOINTS.observer = None


@pytest.mark.usefixtures("unobserved")
def test_a_committer_that_wakes_up_after_the_revert_backs_up_nothing(world: World) -> None:
    late = open_merging(world)
    write(late, "t", NEW)

    def others_revert(name: str) -> None:
        if name == "make-way.move.before":
            FAILPOINTS.observer = None
            lose_upload(world, late, "n")
            with pytest.raises(JobFailedError, match="lost for good"):
                world.attach(late.job_id).commit()
            FAILPOINTS.observer = die

    def die(name: str) -> None:
        if name == "complete.complete.before":
            raise Crash

    FAILPOINTS.observer = others_revert
    with pytest.raises(Crash):
        late.commit()
    FAILPOINTS.observer = None
    assert world.visible() == OLD
    assert world.live() == world.keys()
    assert files_aside(world) == []


@pytest.mark.usefixtures("unobserved")
@pytest.mark.parametrize(
    ("times", "error"), [(1, JobFailedError), (RESTORE_TRIES, OutcomeUnknownError)], ids=["once", "ever"]
)
def test_a_file_backed_up_again_while_it_is_moved_back_is_moved_back_again(
    world: World, times: int, error: type[LockgateError]
) -> None:
    job = open_merging(world)
    write(job, "t", NEW)
    left, tree = [times], LocalStore(world.url)
    version = tree.head("x").version

    def make_way_again(name: str) -> None:
        if name == "make-way.move.after" and files_aside(world):
            lose_upload(world, job, "n")
        if name == "move-back.create.before" and left[0]:
            left[0] -= 1
            assert tree.move_file("x", job._folder.key(f"backup/{digest(b'x')}"), version)

    FAILPOINTS.observer = make_way_again
    with pytest.raises(error):
        job.commit()
    FAILPOINTS.observer = None
    world.recover()
    assert job.phase() is JobPhase.FAILED
    assert world.visible() == OLD
    assert files_aside(world) == []


@pytest.mark.usefixtures("unobserved")
def test_an_old_job_folder_without_backups_is_deleted(world: World) -> None:
    job = open_merging(world)
    write(job, "t", NEW)
    FAILPOINTS.observer = lambda name: lose_upload(world, job, "n") if name == "make-way.move.after" else None
    with pytest.raises(JobFailedError, match="lost for good"):
        job.commit()
    FAILPOINTS.observer = None
    world.run("new", {"later": b"2"})
    world.clock.sleep(100 * 86_400.0)
    for _ in range(2):
        sweep_uploads(world.url, dry_run=False, settings=world.settings, clock=world.clock)
    assert not Path(world.url, "_lockgate/jobs/new-g1").exists()
    assert world.visible() == {**OLD, "later": b"2"}


@pytest.mark.parametrize("options", [{"committer": "magic"}, {"mode": "append"}], ids=str)
def test_other_committers_and_modes_back_up_nothing(world: World, options: dict[str, str]) -> None:
    with open_merging(world, **options) as job:
        write(job, "t", {"x/a": b"new a"})
        with pytest.raises(ConflictError, match="x is in the way of x/a"):
            job.commit()
    assert world.visible() == OLD


def test_a_folder_with_files_that_the_job_does_not_replace_is_not_backed_up(world: World) -> None:
    with open_merging(world) as job:
        Path(world.url, "y", "_hidden").write_bytes(b"not data")
        write(job, "t", NEW)
        with pytest.raises(ConflictError, match="y/ is in the way of y"):
            job.commit()
    assert world.visible() == OLD


def test_backups_are_retained_as_long_as_replaced_ones(world: World) -> None:
    with open_merging(world, replaced_retention_s=3600.0) as job:
        write(job, "t", NEW)
        job.commit()
    assert len(files_aside(world)) == 3
    world.clock.sleep(3601)
    sweep_uploads(world.url, dry_run=False, settings=world.settings, clock=world.clock)
    assert files_aside(world) == []
    assert world.visible() == NEW
