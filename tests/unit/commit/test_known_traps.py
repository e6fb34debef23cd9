"""Known defects of other committers, each with a test of the correct behaviour."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lockgate.storage_core.commit.decide.turn import TURN_WAIT_S, pass_turn
from lockgate.storage_core.commit.job import Job
from lockgate.storage_core.commit.records.codec import encode
from lockgate.storage_core.commit.records.layout import SUCCESS, turn_claim
from lockgate.storage_core.commit.records.log_records import TurnClaim
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.commit.recovery.upload_sweep import sweep_uploads
from lockgate.storage_core.errors import FencedError, JobFailedError, LockgateError, TurnBusyError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.ids import new_token
from tests.support.commit.destination import ManualClock, World, write

NEW = {"a.csv": b"1", "b.csv": b"22"}
DAY = 86_400.0


@pytest.fixture(autouse=True)
def unobserved() -> Iterator[None]:
    yield
    FAILPOINTS.observer = None
    FAILPOINTS.arm({})


@pytest.mark.parametrize("committer", ["magic", "staging", "file-v1"])
@pytest.mark.parametrize("side", ["before", "after"])
def test_uploads_of_a_task_interrupted_in_its_commit_remain_until_the_jobs_end(
    world: World, side: str, committer: str
) -> None:
    job = world.open_job("sales", committer=committer)

    def shut_down(name: str) -> None:
        if name == f"task-commit.create.{side}":
            FAILPOINTS.observer = None
            raise SystemExit("the worker's shutdown, or a time limit, during the call")

    FAILPOINTS.observer = shut_down
    with pytest.raises(SystemExit):
        write(job, "t", NEW)
    assert len(world.open_uploads()) == len(NEW)
    job.commit()
    assert world.visible() == (NEW if side == "after" else {})
    assert world.open_uploads() == []


@pytest.mark.parametrize("point", ["load.list.before", "turn.create.before", "decide.create.before"])
def test_a_loser_never_writes_that_the_job_failed_while_the_winner_commits(world: World, point: str) -> None:
    job = world.open_job("sales")
    write(job, "t", NEW)
    loser = world.attach(job.job_id)
    loser.take_lease()
    passed: list[str] = []

    def lose(name: str) -> None:
        """Run the loser's commit during the winner's; it is fenced or fails."""
        passed.append(name)
        if name == point:
            FAILPOINTS.observer = None
            with pytest.raises(LockgateError):  # the loser selects an attempt that does not exist
                loser.commit(winners={"t": "no-such-attempt"})  # type: ignore[dict-item]
            FAILPOINTS.observer = passed.append

    winner = world.attach(job.job_id)
    winner.take_lease()
    FAILPOINTS.observer = lose
    winner.commit()
    FAILPOINTS.observer = None
    job.close()
    loser.close()
    assert point in passed
    assert job._folder.ended()[1] is None
    assert job.phase() is JobPhase.COMMITTED
    assert world.visible() == NEW


def test_a_loser_that_aborts_after_the_decision_does_not_affect_the_winner(world: World) -> None:
    job = world.open_job("sales")
    write(job, "t", NEW)
    loser = world.attach(job.job_id)
    aborted: list[JobPhase] = []

    def lose(name: str) -> None:
        if name == "complete.complete.before":
            FAILPOINTS.observer = None
            aborted.append(loser.abort("a cancel that came too late"))

    FAILPOINTS.observer = lose
    job.commit()
    assert aborted == [JobPhase.DECIDED]
    assert job._folder.ended()[1] is None
    assert world.visible() == NEW


@dataclass
class CountingClock(ManualClock):
    """A clock that counts the waits and renews the other job's lease during each of them."""

    pauses: list[float] = field(default_factory=list)
    meanwhile: Callable[[], None] = lambda: None

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.pauses.append(seconds)
        self.meanwhile()


def claim_turn(world: World, job: Job, number: int) -> None:
    """Leave the store in the state of a live driver between its turn and its decision."""
    claimed = TurnClaim(job_id=job.job_id, token=new_token(), stamp=job._held_lease().stamp)
    world.store.create(turn_claim(number), encode(claimed))


def test_a_job_that_waits_for_a_turn_polls_with_growing_pauses(tmp_path: Path) -> None:
    clock = CountingClock()
    world = World(tmp_path, str(tmp_path / "dest"), clock)
    live, job = world.open_job("live"), world.open_job("sales")
    claim_turn(world, live, 1)
    write(job, "t", NEW)
    clock.meanwhile = lambda: live._held_lease().check(within_s=60)
    looks: list[str] = []
    FAILPOINTS.observer = lambda name: looks.append(name) if name == "turn.list.before" else None
    with pytest.raises(TurnBusyError, match=f"job {live.job_id} .* turn 1 at .* and is alive"):
        job.commit()
    FAILPOINTS.observer = None
    assert job.phase() is JobPhase.OPEN
    assert sum(clock.pauses) >= TURN_WAIT_S
    assert clock.pauses[:5] == [0.1, 0.2, 0.4, 0.8, 1.6]
    # Each poll is a listing, whose end takes one more request. No pause follows the last poll.
    assert len(looks) <= 2 * (len(clock.pauses) + 2)
    assert len(clock.pauses) <= TURN_WAIT_S / 2 + 10
    live.close()
    job.close()


def test_a_waiting_job_polls_often_again_when_the_next_turn_begins(tmp_path: Path) -> None:
    clock = CountingClock()
    world = World(tmp_path, str(tmp_path / "dest"), clock)
    others = [world.open_job(name) for name in ("first", "second")]
    job = world.open_job("sales")
    write(job, "t", NEW)
    claim_turn(world, others[0], 1)

    def meanwhile() -> None:
        for other in others:
            other._held_lease().check(within_s=60)
        if len(clock.pauses) == 6:
            pass_turn(world.store, 1, others[0].job_id, clock, "it took long")
            claim_turn(world, others[1], 2)
        if len(clock.pauses) == 8:
            pass_turn(world.store, 2, others[1].job_id, clock, "it was quick")

    clock.meanwhile = meanwhile
    assert job.commit().turn == 3
    assert clock.pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 0.1, 0.2]
    for other in others:
        other.close()


def test_a_clean_up_of_generation_1_deletes_nothing_of_generation_10(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockgate.storage_core.commit.destination.log.CHECKPOINT_TURNS", 1)
    for _ in range(9):
        world.run("sales", NEW)
    tenth = world.open_job("sales")
    assert tenth.job_id == "sales-g10"
    write(tenth, "t1", {"a.csv": b"10"})
    write(tenth, "t10", {"b.csv": b"10"})
    tenth.suspend(timeout_s=100 * DAY)
    world.attach("sales-g1").finish()
    world.clock.now += 40 * DAY  # the retention of ended jobs' folders is over
    sweep_uploads(world.url, dry_run=False, settings=world.settings, clock=world.clock)
    assert list(world.store.pages("_lockgate/jobs/sales-g1/")) == []
    assert world.attach("sales-g10").commit().files == 2
    assert world.visible() == {"a.csv": b"10", "b.csv": b"10"}


def test_no_thread_outlives_a_job_however_it_ends(world: World) -> None:
    before = set(threading.enumerate())
    world.run("commits", NEW)
    with world.open_job("aborts") as job:
        write(job, "t", NEW)
        job.abort()

    def fails() -> None:
        with world.open_job("fails") as job, job.attempt("t") as attempt:
            attempt.open("a.csv").write(b"x" * (6 << 20))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    with world.open_job("suspended") as job:
        write(job, "t", NEW)
    fenced = world.open_job("fenced")
    write(fenced, "t", NEW)
    world.open_job("fenced").close()
    world.clock.now += 60  # the next renewal is due
    with pytest.raises(FencedError):
        fenced.attempt("u").commit()
    fenced.close()
    world.recover()
    assert {thread.name for thread in set(threading.enumerate()) - before} == set()


def test_an_empty_success_file_is_not_used_as_a_manifest_and_the_next_job_replaces_it(world: World) -> None:
    path = Path(world.url)
    path.mkdir()
    (path / SUCCESS).write_bytes(b"")
    (path / "sparks.csv").write_bytes(b"s")
    assert world.live() == {}
    job = world.run("sales", NEW)
    assert world.store.head(SUCCESS).size > 0
    assert set(world.live()) == set(world.keys()) - {"sparks.csv"}
    (path / SUCCESS).write_bytes(b"")
    assert len(world.live()) == len(NEW)
    assert world.attach(job.job_id).commit() == job.receipt


@pytest.mark.parametrize("point", ["head", "holds", "delete"])
def test_a_revert_keeps_a_foreign_object_written_to_a_key_during_its_check(world: World, point: str) -> None:
    watched = World(world.root, world.url, world.clock, {"parallelism": 1})
    job = watched.open_job("sales", unique_filenames=False, allow_irreversible=True)
    write(job, "t", NEW)
    acts: dict[str, Callable[[], object]] = {
        "decide.create.after": lambda: shutil.rmtree(Path(world.url, "_lockgate/uploads/b.csv")),
        f"revert.{point}.before": lambda: world.store.put("a.csv", b"foreign"),
    }

    def act(name: str) -> None:
        due = acts.pop(name, None)
        if due is not None:
            due()

    FAILPOINTS.observer = act
    with pytest.raises(JobFailedError, match="reverted"):
        job.commit()
    assert acts == {}
    assert world.visible() == {"a.csv": b"foreign"}
