"""Requests of a commit that follow each other, whose number is its time at a store that is far away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lockgate.storage_core.commit.job import Job
from tests.support.commit.destination import write
from tests.support.fake_s3 import Rounds
from tests.support.s3.destination import S3World, s3_world

TRIES = 5
"""A round of a busy machine may be counted as two, so the best of a few tries counts."""
TASKS, FILES = 3, 4


@pytest.fixture
def new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3World]:
    """Return a destination that no job has used."""
    with s3_world(tmp_path, monkeypatch, parallelism=16, journal_url=None) as world:
        yield world


@pytest.fixture
def s3(new: S3World) -> S3World:
    """Return a destination that was probed, without a job."""
    new.driver.open_job("probe").abort()
    return new


@pytest.fixture
def published(s3: S3World) -> S3World:
    """Return a destination with one published job."""
    s3.driver.run("first", {"first.csv": b"1"})
    return s3


def written(job: Job) -> Job:
    """Commit a few tasks."""
    for task in range(TASKS):
        write(job, f"task-{task}", {f"{task}/{number}.csv": b"x" for number in range(FILES)})
    return job


def in_a_row(s3: S3World, prepare: Callable[[str], Callable[[], object]], most: int) -> Rounds:
    """Prepare and run from the same state, at most a few times; return the rounds of the last try."""
    before = s3.fake.snapshot()
    for number in range(TRIES):
        s3.fake.restore(before)
        run = prepare(f"job-{number}")
        s3.fake.rounds = rounds = Rounds()
        try:
            run()
        finally:
            s3.fake.rounds = None
        if len(rounds) <= most:
            break
    for number, requests in enumerate(rounds.rounds, start=1):
        print(number, *requests, sep="\n    ")
    return rounds


def requests(rounds: Rounds) -> int:
    return sum(map(len, rounds.rounds))


def test_a_commit_sends_few_requests_in_a_row(published: S3World) -> None:
    """They are: three levels of reads, the turn, the plan, the decision, whether the turn was passed, the
    completions, the outcome, `_SUCCESS` with the report, the terminal marker, and the clean-up with two."""

    def prepare(name: str) -> Callable[[], object]:
        return written(published.driver.open_job(name)).commit

    rounds = in_a_row(published, prepare, 13)

    assert len(rounds) == 13
    assert requests(rounds) == TASKS * FILES + TASKS + 28


def test_the_first_commit_of_a_destination_also_looks_for_others_above_and_below(s3: S3World) -> None:
    def prepare(name: str) -> Callable[[], object]:
        return written(s3.driver.open_job(name)).commit

    assert len(in_a_row(s3, prepare, 14)) == 14


def test_a_job_that_has_tasks_and_turns_before_it_sends_no_more_in_a_row(published: S3World) -> None:
    for number in range(8):
        published.driver.run(f"before-{number}", {f"before-{number}.csv": b"1"})

    def prepare(name: str) -> Callable[[], object]:
        job = published.driver.open_job(name)
        for task in range(12):
            write(job, f"task-{task}", {f"{task}.csv": b"x"})
        return job.commit

    assert len(in_a_row(published, prepare, 13)) == 13


def test_a_set_up_sends_few_requests_in_a_row(published: S3World) -> None:
    """They are: two levels of reads, the short id, `job.json`, and the lease."""

    def prepare(name: str) -> Callable[[], object]:
        return lambda: published.driver.open_job(name)

    assert len(in_a_row(published, prepare, 5)) == 5


def test_a_task_sends_one_request_in_a_row_before_its_files_and_two_after_them(published: S3World) -> None:
    def prepare(name: str) -> Callable[[], object]:
        job = published.driver.open_job(name)
        return lambda: write(job, "task", {"a.csv": b"x"})

    assert len(in_a_row(published, prepare, 5)) == 5  # two for the upload


def test_the_first_set_up_of_a_destination_tests_the_promises_beside_each_other(new: S3World) -> None:
    def prepare(name: str) -> Callable[[], object]:
        return lambda: new.driver.open_job(name)

    assert len(in_a_row(new, prepare, 17)) == 17
