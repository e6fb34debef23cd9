"""Files that are visible before their job commits, and several attempts that write the same file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from lockgate.storage_core.commit.task.attempt import Attempt
from lockgate.storage_core.errors import ConflictError, UploadGoneError
from lockgate.storage_core.failpoints import FAILPOINTS
from tests.support.commit.destination import World, write
from tests.support.fake_s3.faults import CONFLICT, TIMED_OUT
from tests.support.s3.destination import s3_world

DROPS: dict[str, Callable[[Attempt], None]] = {
    "abort": Attempt.abort,
    "drop": lambda attempt: attempt.drop("a.csv"),
}


@pytest.fixture(autouse=True)
def unobserved() -> Iterator[None]:
    yield
    FAILPOINTS.observer = None


def at(number: int, act: Callable[[], object]) -> list[str]:
    """Call a function once at the storage failpoint of this index; return the name of the failpoint."""
    passed: list[str] = []
    there: list[str] = []

    def observe(name: str) -> None:
        passed.append(name)
        if len(passed) == number + 1:
            FAILPOINTS.observer = None
            there.append(name)
            act()

    FAILPOINTS.observer = observe
    return there


def publish_during_discard(world: World, number: int, drop: Callable[[Attempt], None], *texts: bytes) -> bool:
    """Publish one attempt while another discards its visible file; False if there is no such failpoint."""
    with world.open_job(f"sales {number}", committer="direct", allow_unsafe=True) as job:
        loser, winner = job.attempt("t"), job.attempt("t")
        for attempt, text in zip((loser, winner), texts, strict=True):
            with attempt.open("a.csv") as file:
                file.write(text)
        winner.commit()
        reached = at(number, lambda: job.commit(winners={winner.task_id: winner.attempt_id}))
        drop(loser)
        FAILPOINTS.observer = None
        job.commit(winners={winner.task_id: winner.attempt_id})
    return bool(reached)


@pytest.mark.parametrize("drop", DROPS.values(), ids=DROPS)
def test_an_attempt_that_discards_its_file_keeps_the_one_published_meanwhile(
    world: World, drop: Callable[[Attempt], None]
) -> None:
    points = 0
    for number in count():
        here = World(world.root, f"{world.url}/{number}", world.clock)
        if not publish_during_discard(here, number, drop, b"loser", b"the winner"):
            break
        points += 1
        assert here.visible() == {"a.csv": b"the winner"}
        assert here.live() == here.keys()
    assert points


@pytest.mark.parametrize("drop", DROPS.values(), ids=DROPS)
def test_a_file_discarded_after_it_was_visible_is_deleted_at_the_job_s_end(
    world: World, drop: Callable[[Attempt], None]
) -> None:
    with world.open_job("sales", committer="direct", allow_unsafe=True) as job:
        attempt = job.attempt("t")
        with attempt.open("a.csv") as file:
            file.write(b"given up")
        drop(attempt)
        assert world.visible() == {"a.csv": b"given up"}
        write(job, "t", {"b.csv": b"1"})
        job.commit()
    assert world.visible() == {"b.csv": b"1"}
    assert world.live() == world.keys()


@pytest.mark.parametrize("is_seen_already", [False, True])
def test_a_file_lost_during_early_publication_fails_its_attempt_and_the_next_try_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_seen_already: bool
) -> None:
    with s3_world(tmp_path, monkeypatch) as s3:
        world = s3.driver
        with world.open_job("sales", committer="direct", allow_unsafe=True) as job:
            if is_seen_already:
                write(job, "t", {"a.csv": b"first"})
                world.clock.sleep(1)
            attempt = job.attempt("t")
            s3.fake.faults.at(CONFLICT, operation="CompleteMultipartUpload")  # this ends the upload
            file = attempt.open("a.csv")
            file.write(b"lost")
            with pytest.raises(UploadGoneError, match="the file is lost; run the task again"):
                file.close()
            with pytest.raises(ConflictError, match="was aborted; begin another"):
                attempt.commit()
            write(job, "t", {"a.csv": b"next"})
            job.commit()
        assert world.visible() == {"a.csv": b"next"}
        assert world.live() == world.keys()
        assert world.open_uploads() == []


def test_a_file_whose_early_publication_got_no_answer_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_world(tmp_path, monkeypatch, s3_max_attempts=1) as s3:
        with s3.driver.open_job("sales", committer="direct", allow_unsafe=True) as job:
            for task, fault in {"seen": TIMED_OUT.after_the_effect(), "open": TIMED_OUT}.items():
                s3.fake.faults.at(fault, operation="CompleteMultipartUpload")
                write(job, task, {f"{task}.csv": b"1"})
            assert s3.driver.visible() == {"seen.csv": b"1"}
            job.commit()
        assert s3.driver.visible() == {"seen.csv": b"1", "open.csv": b"1"}
