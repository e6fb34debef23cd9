"""`report.json`: the outcome of every file, for every end of a job."""

from __future__ import annotations

from collections import Counter

import pytest

from lockgate.storage_core.commit.publish import commit_context
from lockgate.storage_core.commit.publish.commit_context import read_file_results
from lockgate.storage_core.commit.records.phase import JobPhase
from tests.support.commit.destination import World, plain, write

FILES = {f"day={number % 3}/{number:02d}.csv": b"x" * number for number in range(17)}


def results_of(world: World, job_id: str) -> list[tuple[str, str]]:
    return sorted((plain(file.key), file.result) for file in read_file_results(world.attach(job_id)._folder))


def test_the_report_of_a_committed_job_names_published_and_deleted_files(world: World) -> None:
    world.run("old", {"old.csv": b"o"})
    job = world.run("new", {"new.csv": b"n"}, mode="replace")
    assert results_of(world, job.job_id) == [("new.csv", "published"), ("old.csv", "removed")]


def test_the_report_of_an_aborted_job_names_its_uploads(world: World) -> None:
    with world.open_job("sales") as job:
        write(job, "t", {"a.csv": b"a"})
        assert job.abort("not today") is JobPhase.FAILED
    report = job._folder.report()
    assert report is not None
    assert (report.ended, report.reason) == ("failed", "aborted: not today")
    assert results_of(world, job.job_id) == [("a.csv", "aborted")]


def test_a_long_report_is_stored_in_shards_and_names_every_file(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_context, "SHARD_ENTRIES", 5)
    job = world.open_job("sales")
    write(job, "t", FILES)
    job.commit()
    report = job._folder.report()
    assert report is not None
    assert (len(report.shards), len(report.files)) == (3, 2)
    assert report.counts == {"published": len(FILES)}
    assert results_of(world, job.job_id) == sorted((path, "published") for path in FILES)
    assert Counter(report.counts) == Counter(file.result for file in read_file_results(job._folder))
