"""Jobs in a directory: files are published in place; files and folders can have path conflicts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.errors import (
    ConflictError,
    InvalidInputError,
    JobFailedError,
    UnsupportedStoreError,
)
from lockgate.storage_core.stores.local.store import LocalStore
from tests.support.commit.destination import World, write

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


def test_a_staged_file_is_added_without_a_copy_and_can_be_added_again(world: World, tmp_path: Path) -> None:
    staged = tmp_path / "stage" / "a.csv"
    staged.parent.mkdir()
    staged.write_bytes(b"12345")
    with world.open_job("sales", committer="file-v1") as job:
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


def test_a_staged_file_on_another_file_system_is_copied(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def adopt_file(*_: object) -> None:
        raise UnsupportedStoreError("another file system")

    monkeypatch.setattr(LocalStore, "adopt_file", adopt_file)
    staged = tmp_path / "a.csv"
    staged.write_bytes(b"12345")
    with world.open_job("sales", committer="file-v1") as job:
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


@pytest.mark.parametrize("committer", ["magic", "file-v1"])
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
