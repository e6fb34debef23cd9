"""Staging directories of unrelated jobs, and correct reports of a job's end."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

import pytest

from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.errors import ConflictError, InvalidInputError, StoreUnavailableError
from tests.support.commit.destination import World, write


def test_jobs_with_one_name_at_two_destinations_do_not_share_staged_files(tmp_path: Path) -> None:
    here, elsewhere = World(tmp_path, str(tmp_path / "here")), World(tmp_path, str(tmp_path / "elsewhere"))
    mine, other = (world.open_job("sales", committer="staging") for world in (here, elsewhere))
    attempt = mine.attempt("t")
    with attempt.open("a.csv") as file:
        file.write(b"mine")
    write(other, "t", {"b.csv": b"other"})
    other.commit()  # ends the other job and removes its staging directory
    attempt.commit()
    mine.commit()
    assert here.visible() == {"a.csv": b"mine"}


def test_a_staging_directory_is_a_path_and_no_folder_that_is_called_like_a_url(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for url in ("s3://lake/staging", "s3:/lake/staging", "~/staging"):
        with pytest.raises(InvalidInputError, match=r"write|all workers can access"):
            world.open_job("sales", committer="staging", staging=url)
    assert [path.name for path in tmp_path.iterdir() if path.name not in {"home", "dest"}] == []
    job = world.open_job("sales", committer="staging", staging=f"file:{tmp_path}/shared")
    assert job.staging_dir.startswith(f"{tmp_path}/shared/")


def test_a_job_aborted_by_its_own_commit_is_not_reported_as_taken_over(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def second() -> None:
        with world.open_job("two", mode="fail") as job:
            write(job, "t", {"b.csv": b"2"})
            world.run("one", {"a.csv": b"1"}, mode="fail")
            job.commit()

    with caplog.at_level(logging.WARNING), pytest.raises(ConflictError, match="the mode is fail"):
        second()
    assert caplog.messages == []
    assert world.attach("two-g1").phase() is JobPhase.FAILED


def test_a_disk_that_is_full_of_staged_files_is_said(world: World) -> None:
    with world.open_job("sales", committer="staging") as job:
        file = job.attempt("t").open("a.csv")
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, file.fileno())
        os.close(full)
        with pytest.raises(StoreUnavailableError, match="the file system is full; free space"):
            file.write(bytes(2**20))
        file.close()


@pytest.mark.parametrize("committer", ["staging", "partitioned"])
def test_a_staged_file_is_its_owners_only_and_is_published_with_the_usual_mode(
    world: World, committer: str, tmp_path: Path
) -> None:
    (tmp_path / "usual").touch()
    with world.open_job("sales", committer=committer) as job:
        with job.attempt("t") as attempt, attempt.open("day=1/a.csv") as file:
            file.write(b"mine")
            (staged,) = (path for path in Path(job.staging_dir).rglob("*") if path.is_file())
            assert stat.S_IMODE(staged.stat().st_mode) == 0o600
        job.commit()
    (visible,) = (path for path in Path(world.url, "day=1").iterdir() if path.is_file())
    assert visible.stat().st_mode == (tmp_path / "usual").stat().st_mode


@pytest.mark.parametrize("mode", [0o600, 0o640])
def test_a_private_file_that_is_taken_without_a_copy_is_published_with_the_usual_mode(
    world: World, tmp_path: Path, mode: int
) -> None:
    (tmp_path / "usual").touch()
    (tmp_path / "a.csv").write_bytes(b"1")
    (tmp_path / "a.csv").chmod(mode)
    with world.open_job("sales", committer="file-v1") as job:
        with job.attempt("t") as attempt:
            attempt.add_file(tmp_path / "a.csv", "a.csv")
        job.commit()
    (visible,) = (path for path in Path(world.url).iterdir() if path.is_file() and path.name != "_SUCCESS")
    assert visible.samefile(tmp_path / "a.csv")
    usual = stat.S_IMODE((tmp_path / "usual").stat().st_mode)
    assert stat.S_IMODE(visible.stat().st_mode) == (usual if mode == 0o600 else mode)
