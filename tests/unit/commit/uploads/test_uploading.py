"""Writing: a task's reaction to store failures, and the visibility of its files meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from lockgate.storage_core.commit.open_or_attach import attach_job
from lockgate.storage_core.commit.records.create_if_absent import CREATE_TRIES
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.commit.task.attempt import Attempt
from lockgate.storage_core.errors import StoreUnavailableError
from lockgate.storage_core.failpoints import FAILPOINTS
from tests.support.commit.destination import World, write

MIB = 1024 * 1024
FILES = {f"{number}.csv": b"x" * number for number in range(8)}


@pytest.fixture(autouse=True)
def unobserved() -> Iterator[None]:
    yield
    FAILPOINTS.observer = None
    FAILPOINTS.arm({})


def refuse(point: str, times: int, words: Callable[[int], str] = str) -> list[int]:
    """Make the store refuse this many times at a failpoint; return the growing list of refusals."""
    refused: list[int] = []
    lock = threading.Lock()

    def observe(name: str) -> None:
        if name != point:
            return
        with lock:
            if len(refused) == times:
                return
            refused.append(len(refused) + 1)
            number = len(refused)
        raise StoreUnavailableError(f"{point} was refused ({words(number)})")

    FAILPOINTS.observer = observe
    return refused


def write_all(attempt: Attempt) -> None:
    for path, data in FILES.items():
        with attempt.open(path) as file:
            file.write(data)


def test_a_task_commit_whose_last_try_is_accepted_succeeds(world: World) -> None:
    with world.open_job("sales") as job:
        attempt = job.attempt("t")
        write_all(attempt)
        refused = refuse("task-commit.create.before", CREATE_TRIES - 1)
        attempt.commit()
        assert len(refused) == CREATE_TRIES - 1
        job.commit()
    assert world.visible() == FILES


def test_a_task_commit_whose_tries_are_all_refused_fails_and_aborts_its_uploads(
    world: World,
) -> None:
    with world.open_job("sales") as job:
        attempt = job.attempt("t")
        write_all(attempt)
        refuse("task-commit.create.before", CREATE_TRIES)
        with pytest.raises(StoreUnavailableError, match="refused"):
            attempt.commit()
        assert world.open_uploads() == []
        assert list(job.pending_sets()) == []
        FAILPOINTS.observer = None
        write(job, "t", {"again.csv": b"1"})
        job.commit()
    assert world.visible() == {"again.csv": b"1"}


@pytest.mark.parametrize("committer", ["magic", "staging", "file-v1"])
def test_the_first_failure_of_one_file_among_many_aborts_all_uploads_of_the_attempt(
    world: World, committer: str
) -> None:
    # Staged files are adopted by a link where the destination is on the same file system.
    step = "task-write.part.before" if committer == "magic" else "task-write.adopt.before"

    def run() -> None:
        with world.open_job("sales", committer=committer) as job, job.attempt("t") as attempt:
            for number, path in enumerate(FILES):
                if number == 5 and committer == "magic":
                    refuse(step, 1)
                with attempt.open(path) as file:
                    file.write(FILES[path])
            if committer != "magic":
                refuse(step, 1)

    with pytest.raises(StoreUnavailableError, match="refused"):
        run()
    FAILPOINTS.observer = None
    assert world.attach("sales-g1").phase() is JobPhase.OPEN  # a store error: the job may be retried
    assert (world.visible(), world.open_uploads()) == ({}, [])


def test_the_first_of_several_failures_is_reported_even_if_the_abort_fails(
    world: World,
) -> None:
    job = world.open_job("sales")
    attempt = job.attempt("t")
    write_all(attempt)
    writer = attempt.open_upload("big.bin")

    def observe(name: str) -> None:
        if name == "task-write.part.before" or name.endswith(".abort.before"):
            raise StoreUnavailableError(f"{name} was refused")

    FAILPOINTS.observer = observe
    writer.write(b"x" * (5 * MIB))
    with pytest.raises(StoreUnavailableError, match=r"^task-write\.part\.before was refused$"), attempt:
        writer.close()
    FAILPOINTS.observer = None
    assert (
        len(world.open_uploads()) == len(FILES) + 1
    )  # the abort was refused: the uploads remain until the job's end
    write(job, "u", {"a.csv": b"1"})
    job.commit()
    assert world.visible() == {"a.csv": b"1"}
    assert world.open_uploads() == []


def test_progress_is_reported_file_by_file(world: World) -> None:
    reported: list[tuple[str, int, int]] = []
    with world.open_job("sales") as job:
        write(job, "t", FILES)
        attach_job(
            world.url,
            job.job_id,
            settings=world.settings,
            clock=world.clock,
            progress=lambda step, done, total: reported.append((step, done, total)),
        ).commit()
    completed = [(done, total) for step, done, total in reported if step == "complete"]
    assert [done for done, _ in completed] == list(range(1, len(FILES) + 1))
    assert {total for _, total in completed} == {len(FILES)}


def test_a_reader_of_the_destination_never_sees_a_pending_file(world: World) -> None:
    seen: set[str] = set()

    def look(name: str) -> None:
        FAILPOINTS.observer = None
        seen.update(world.visible())
        FAILPOINTS.observer = look

    with world.open_job("sales") as job:
        FAILPOINTS.observer = look
        write(job, "t", FILES)
        with job.attempt("u") as attempt, attempt.open("big.bin") as file:
            file.write(b"x" * (11 * MIB))
        FAILPOINTS.observer = None
        assert seen == set()
        job.commit()
    assert len(world.visible()) == len(FILES) + 1
