"""Which attempt of a task counts: the order of the task commits decides, and no clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockgate.storage_core.commit.decide.task_selection import choose, newest_job_attempt
from lockgate.storage_core.commit.job import Job
from lockgate.storage_core.commit.records.expected_tasks import ExpectedTask
from lockgate.storage_core.commit.task.attempt import Attempt
from lockgate.storage_core.errors import InvalidInputError, OutcomeUnknownError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.fsspec.filesystem import job_filesystem
from lockgate.storage_core.ids import JobAttemptId, TaskId
from tests.support.commit.destination import ManualClock, World, write

HOUR_S = 3600.0


@pytest.fixture(autouse=True)
def unobserved() -> Iterator[None]:
    yield
    FAILPOINTS.observer = None
    FAILPOINTS.arm({})


def begin(job: Job, text: bytes, **options: int) -> Attempt:
    """Begin an attempt of task `t` and write its file."""
    attempt = job.attempt("t", **options)
    with attempt.open("a.csv") as file:
        file.write(text)
    return attempt


def worker(world: World, job: Job, clock_s: float = 0.0) -> Job:
    """Attach to the job on another machine, whose clock differs by these seconds."""
    return replace(world, clock=ManualClock(world.clock.now + clock_s)).attach_to(job)


def at(point: str, act: Callable[[], object]) -> None:
    """Run `act` when a point is passed for the first time."""

    def observe(name: str) -> None:
        if name == point:
            FAILPOINTS.observer = None
            act()

    FAILPOINTS.observer = observe


def test_a_slow_first_attempt_that_commits_last_wins(world: World) -> None:
    with world.open_job("sales") as job:
        slow = begin(job, b"slow")
        world.clock.now += 60
        begin(job, b"quick").commit()
        slow.commit()
        job.commit()
    assert world.visible() == {"a.csv": b"slow"}


@pytest.mark.parametrize("behind_s", [HOUR_S, -HOUR_S])
def test_a_retry_wins_on_a_clock_that_is_an_hour_off(world: World, behind_s: float) -> None:
    with world.open_job("sales") as job:
        begin(worker(world, job), b"first").commit()
        begin(worker(world, job, -behind_s), b"retry").commit()
        job.commit()
    assert world.visible() == {"a.csv": b"retry"}


def test_an_attempt_whose_commit_waited_while_another_committed_wins(world: World) -> None:
    with world.open_job("sales") as job:
        paused = begin(job, b"paused")
        other = begin(job, b"other")
        at("task-commit.create.before", other.commit)
        paused.commit()
        job.commit()
    assert world.visible() == {"a.csv": b"paused"}


def test_a_commit_repeated_after_a_lost_answer_keeps_its_place(world: World) -> None:
    with world.open_job("sales") as job:
        first = begin(job, b"first")
        FAILPOINTS.arm({"task-commit.create.after": "lost", "task-commit.get.before": "refuse@2"})
        with pytest.raises(OutcomeUnknownError):
            first.commit()
        FAILPOINTS.arm({})
        begin(job, b"second").commit()
        first.commit()
        job.commit()
    assert world.visible() == {"a.csv": b"second"}


def test_a_retry_that_gives_its_try_number_wins_over_what_it_retries_even_if_that_commits_later(
    world: World,
) -> None:
    with world.open_job("sales") as job:
        zombie = begin(worker(world, job), b"first try", try_number=1)
        begin(worker(world, job, -HOUR_S), b"second try", try_number=2).commit()
        zombie.commit()
        job.commit()
    assert world.visible() == {"a.csv": b"second try"}


def test_a_try_number_reaches_the_attempt_through_a_file_system(world: World) -> None:
    with world.open_job("sales") as job:
        zombie = begin(job, b"first try", try_number=1)
        with job_filesystem(job, "t", try_number=2) as (fs, root), fs.open(f"{root}/a.csv", "wb") as file:
            file.write(b"second try")
        zombie.commit()
        job.commit()
    assert world.visible() == {"a.csv": b"second try"}


def test_a_negative_try_number_is_refused(world: World) -> None:
    with world.open_job("sales") as job, pytest.raises(InvalidInputError, match="try_number=-1"):
        job.attempt("t", try_number=-1)


def test_the_newest_driver_is_the_one_that_listed_its_tasks_last(world: World) -> None:
    job = world.open_job("sales")
    for attempt, clock_s in (("run-a", 0.0), ("run-b", -HOUR_S), ("run-c", -2 * HOUR_S)):
        driver = worker(world, job, clock_s)
        driver._job_attempt = JobAttemptId(attempt)
        driver.expect([ExpectedTask(task_id=TaskId("t"))])
    assert newest_job_attempt(job._folder) == "run-c"
    job.close()


def test_the_newest_driver_without_a_list_is_the_one_whose_task_committed_last(world: World) -> None:
    job = world.open_job("sales")
    write(job, "t", {"a.csv": b"1"})
    write(job, "t", {"a.csv": b"2"})
    earlier = job.job_attempt
    job.close()
    later = replace(world, clock=ManualClock(world.clock.now - HOUR_S)).open_job("sales")
    write(later, "u", {"b.csv": b"3"})
    assert newest_job_attempt(job._folder) == later.job_attempt != earlier
    later.close()


@settings(max_examples=15, deadline=None)
@given(
    attempts=st.lists(
        st.tuples(st.integers(0, 2), st.floats(-HOUR_S, HOUR_S)), min_size=2, max_size=4
    ).flatmap(lambda some: st.tuples(st.just(some), st.permutations(range(len(some)))))
)
def test_of_attempts_in_any_order_on_any_clocks_the_last_commit_of_the_greatest_try_wins(
    attempts: tuple[list[tuple[int, float]], list[int]],
) -> None:
    some, order = attempts
    with TemporaryDirectory() as root:
        world = World(Path(root), f"{root}/dest")
        with world.open_job("sales") as job:
            begun = [
                (try_number, worker(world, job, clock_s).attempt("t", try_number=try_number))
                for try_number, clock_s in some
            ]
            wanted = (-1, "")
            for try_number, attempt in (begun[number] for number in order):
                attempt.commit()
                if try_number >= wanted[0]:
                    wanted = (try_number, attempt.attempt_id)
            (chosen,) = choose(job._folder, job.job_attempt)
    assert chosen.attempt_id == wanted[1]
