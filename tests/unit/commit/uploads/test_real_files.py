"""Files that a task first writes to disk: failed, deleted meanwhile, or discarded."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from lockgate.storage_core.commit.job import Job
from lockgate.storage_core.errors import ConflictError, StoreUnavailableError
from tests.support.commit.destination import World

ON_DISK = ("staging", "partitioned", "file-v1", "file-v2")


def directory_of(job: Job) -> Path:
    """Return the directory to which all attempts of a job write."""
    on_the_spot = job.spec.committer.startswith("file-")
    return (
        Path(job.destination.removeprefix("file://"), "_temporary") if on_the_spot else Path(job.staging_dir)
    )


@pytest.mark.parametrize("committer", ON_DISK)
def test_a_file_whose_buffered_bytes_cannot_be_written_is_dropped(world: World, committer: str) -> None:
    with world.open_job("sales", committer=committer) as job:
        attempt = job.attempt("t")
        file = attempt.open("a.csv")
        file.write(b"1234")
        os.close(file.fileno())  # like a failed disk: buffered bytes cannot be written
        with pytest.raises(StoreUnavailableError, match=r"close .*a\.csv"):
            file.close()
        attempt.commit()
        assert job.commit().files == 0
    assert world.visible() == {}


@pytest.mark.parametrize("committer", ON_DISK)
@pytest.mark.parametrize("give_up", ["drop", "abort"])
def test_a_file_discarded_while_open_is_closed(world: World, committer: str, give_up: str) -> None:
    with world.open_job("sales", committer=committer) as job:
        attempt = job.attempt("t")
        file = attempt.open("a.csv")
        file.write(b"1234")
        attempt.drop("a.csv") if give_up == "drop" else attempt.abort()
        assert file.closed
        assert job.commit().files == 0


@pytest.mark.parametrize("committer", ON_DISK)
@pytest.mark.parametrize("then", ["writes on", "commits"])
def test_a_task_whose_directory_was_removed_does_not_commit_later_files(
    world: World, committer: str, then: str
) -> None:
    with world.open_job("sales", committer=committer) as job:
        attempt = job.attempt("t")
        with attempt.open("day=1/a.csv") as file:
            file.write(b"first half")
        shutil.rmtree(directory_of(job))  # other tools clear `_temporary`, and cleaners delete old files
        if then == "writes on":
            with pytest.raises(ConflictError, match="is gone, with the data that the task wrote"):
                attempt.open("day=1/b.csv")
        with pytest.raises(ConflictError, match="is gone, with the data that the task wrote"):
            attempt.commit()
        assert job.commit().files == 0
    assert world.visible() == {}


@pytest.mark.parametrize("committer", ON_DISK)
def test_a_task_with_a_missing_file_does_not_commit_the_others(world: World, committer: str) -> None:
    with world.open_job("sales", committer=committer) as job:
        attempt = job.attempt("t")
        for path in ("day=1/a.csv", "day=1/b.csv"):
            with attempt.open(path) as file:
                file.write(b"1")
        next(directory_of(job).rglob("a.csv")).unlink()
        with pytest.raises(ConflictError, match=r"day=1/a\.csv is gone"):
            attempt.commit()
        assert job.commit().files == 0


@pytest.mark.parametrize("committer", ON_DISK)
def test_files_that_a_writer_creates_and_renames_itself_are_committed(world: World, committer: str) -> None:
    with world.open_job("sales", committer=committer) as job:
        with job.attempt("t") as attempt:
            own = attempt.temporary_dir if committer.startswith("file-") else attempt.staging_dir
            (own / "deep").mkdir()
            (own / "half").write_bytes(b"1")
            (own / "half").rename(own / "deep" / "a.csv")
        job.commit()
    assert world.visible() == {"deep/a.csv": b"1"}
