"""Jobs and attempts used in ways that a program may try: shared by threads, left open, sought in, pickled."""

from __future__ import annotations

import copy
import io
import os
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

import pytest

from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.errors import ConflictError, InvalidInputError, JobFailedError, LockgateError
from lockgate.storage_core.failpoints import FAILPOINTS
from tests.support.cli import Run
from tests.support.commit.destination import World, write

THREADS = 12

T = TypeVar("T")


@pytest.fixture(params=["heartbeats", "journal"])
def either(request: pytest.FixtureRequest, world: World) -> World:
    """Return a destination whose jobs have their leases in their folders, or in a journal."""
    return world.with_journal() if request.param == "journal" else world


def at_once(call: Callable[[], T], count: int = THREADS) -> list[T | LockgateError]:
    """Call from many threads that start together; return their results and errors."""
    start = threading.Barrier(count)

    def run(_: int) -> T | LockgateError:
        start.wait()
        try:
            return call()
        except LockgateError as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


@pytest.mark.parametrize("attached", [False, True])
def test_threads_that_share_a_job_and_all_commit_get_one_receipt(either: World, attached: bool) -> None:
    with either.open_job("sales") as job:
        write(job, "t", {"a.csv": b"1"})
        shared = either.attach(job.job_id) if attached else job
        receipts = at_once(shared.commit)
    assert {type(receipt) for receipt in receipts} == {type(job.receipt)}
    assert receipts == [job.receipt] * THREADS
    assert either.visible() == {"a.csv": b"1"}


def test_a_fork_that_commits_while_a_thread_of_its_parent_commits_does_not_hang(world: World) -> None:
    with world.open_job("sales") as job:
        write(job, "t", {"a.csv": b"1"})

        def fork(name: str) -> None:
            if name != "complete.complete.before":
                return
            FAILPOINTS.observer = None
            child = os.fork()
            if child == 0:
                with suppress(BaseException):
                    os._exit(0 if job.commit().files == 1 else 1)
                os._exit(2)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

        FAILPOINTS.observer = fork
        try:
            assert job.commit().files == 1
        finally:
            FAILPOINTS.observer = None
    assert world.visible() == {"a.csv": b"1"}


@pytest.mark.parametrize("committer", ["magic", "staging"])
def test_threads_that_share_an_attempt_and_all_commit_it_get_one_pending_set(
    world: World, committer: str
) -> None:
    with world.open_job("sales", committer=committer, allow_unsafe=True) as job:
        attempt = job.attempt("t")
        with attempt.open("a.csv") as file:
            file.write(b"1")
        assert at_once(attempt.commit) == [next(job.pending_sets())] * THREADS
        job.commit()
    assert world.visible() == {"a.csv": b"1"}


@pytest.mark.parametrize("committer", ["magic", "staging"])
def test_a_task_with_a_file_that_was_never_closed_does_not_commit(world: World, committer: str) -> None:
    with world.open_job("sales", committer=committer, allow_unsafe=True) as job:
        attempt = job.attempt("t")
        with attempt.open("whole.csv") as file:
            file.write(b"1")
        half = attempt.open("day=1/half.csv")
        half.write(b"1,2\n3,")
        with pytest.raises(
            InvalidInputError, match=r"'day=1/half\.csv' was not closed.* nothing of this attem"
        ):
            attempt.commit()
        assert attempt.aborted
        assert list(job.pending_sets()) == []
        write(job, "t", {"day=1/half.csv": b"1,2\n3,4\n"})
        job.commit()
    assert world.visible() == {"day=1/half.csv": b"1,2\n3,4\n"}
    assert world.open_uploads() == []


@pytest.mark.parametrize("committer", ["magic", "staging"])
def test_an_open_file_that_was_dropped_does_not_stop_the_commit(world: World, committer: str) -> None:
    with world.open_job("sales", committer=committer, allow_unsafe=True) as job:
        with job.attempt("t") as attempt:
            attempt.open("half.csv").write(b"1")
            attempt.drop("half.csv")
            with attempt.open("whole.csv") as file:
                file.write(b"2")
        job.commit()
    assert world.visible() == {"whole.csv": b"2"}


@pytest.mark.parametrize("committer", ["magic", "staging"])
def test_a_file_whose_block_raised_is_not_published_even_if_the_task_commits(
    world: World, committer: str
) -> None:
    with world.open_job("sales", committer=committer, allow_unsafe=True) as job:
        with job.attempt("t") as attempt:
            with suppress(RuntimeError), attempt.open("half.csv") as file:
                file.write(b"1")
                raise RuntimeError
            with attempt.open("whole.csv") as file:
                file.write(b"2")
        job.commit()
    assert world.visible() == {"whole.csv": b"2"}


def test_a_streamed_file_refuses_to_seek_and_names_what_can(world: World) -> None:
    with world.open_job("sales") as job:
        with job.attempt("t") as attempt, attempt.open("a.csv") as file:
            file.write(b"1")
            assert not file.seekable()
            with pytest.raises(io.UnsupportedOperation, match=r"a\.csv.*cannot seek.*committer='staging'"):
                file.seek(0)
            file.write(b"2")
        job.commit()
    assert world.visible() == {"a.csv": b"12"}


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_job_and_an_attempt_refuse_to_be_pickled_or_copied(
    world: World, duplicate: Callable[[object], object]
) -> None:
    with world.open_job("sales") as job:
        with pytest.raises(
            InvalidInputError, match=r"cannot be pickled or copied.*attach_job\(destination, job"
        ):
            duplicate(job)
        with job.attempt("t") as attempt:
            with pytest.raises(InvalidInputError, match=r"cannot be pickled or copied.*begin an attempt"):
                duplicate(attempt)
            with attempt.open("a.csv") as file:
                file.write(b"1")
        job.commit()
    assert world.visible() == {"a.csv": b"1"}


def test_a_repeated_commit_after_a_failure_names_the_failure(world: World) -> None:
    job = world.open_job("sales")
    job.abort("a reason")
    with pytest.raises(JobFailedError, match="a reason"):
        job.commit()


def test_another_process_publishes_a_job_without_any_task_only_if_that_is_allowed(world: World) -> None:
    world.run("old", {"old.csv": b"0"})
    job = world.open_job("sales", mode="replace")
    started = job.attempt("t")
    with started.open("a.csv") as file:
        file.write(b"1")
    job.close()  # as if the driver was killed before the task committed
    with pytest.raises(ConflictError, match=r"no task has committed.*driver may have died.*--allow-empty"):
        world.attach(job.job_id).commit()
    assert (job.phase(), world.visible()) == (JobPhase.OPEN, {"old.csv": b"0"})
    assert world.attach(job.job_id).commit(allow_empty=True).files == 0
    assert world.visible() == {}


def test_a_driver_or_an_empty_task_list_may_publish_a_job_without_data(world: World) -> None:
    with world.open_job("by-driver") as job:
        assert job.commit().files == 0
    with world.open_job("by-list") as job:
        job.expect([])
        job.suspend()
        assert world.attach(job.job_id).commit().files == 0


def test_the_command_publishes_an_empty_job_only_if_that_is_allowed(
    world: World, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits_s = {"LEASE_RENEW": 0.2, "LEASE_SOFT": 0.5, "LEASE_HARD": 1.0, "COMMIT_WINDOW": 0.5}
    for name, limit_s in limits_s.items():
        monkeypatch.setenv(f"LOCKGATE_{name}_S", str(limit_s))
    world.clock.now = 1_000_000_000.0  # long before the time of the command: the lease has lapsed
    job = world.open_job("sales")
    job.close()
    refused = run("jobs", "commit", world.url, job.job_id)
    assert (refused.exit_code, job.phase()) == (ConflictError.exit_code, JobPhase.OPEN)
    assert run("jobs", "commit", world.url, job.job_id, "--allow-empty").exit_code == 0
