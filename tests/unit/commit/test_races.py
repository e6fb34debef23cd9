"""Schedules that once failed: zombies, lost answers, refusals, and concurrent jobs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lockgate.storage_core.commit.job_summary import list_jobs
from lockgate.storage_core.commit.records.expected_tasks import ExpectedTask
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.commit.recovery.decision_table import RecoveryAction
from lockgate.storage_core.commit.recovery.recover import recover_job
from lockgate.storage_core.commit.recovery.upload_sweep import SweepAction, sweep_uploads
from lockgate.storage_core.errors import (
    FencedError,
    MalformedRecordError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    StoreUnavailableError,
    UploadGoneError,
)
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.ids import TaskId
from tests.support.commit.destination import Crash, World, write

NEW = {"a.csv": b"1", "b.csv": b"2"}


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    """Reset the failpoints after the test."""
    yield
    FAILPOINTS.observer = None
    FAILPOINTS.arm({})


@contextmanager
def at(point: str, act: Callable[[], object]) -> Iterator[None]:
    """Call a function once, at a failpoint."""

    def observe(name: str) -> None:
        if name == point:
            FAILPOINTS.observer = None
            act()

    FAILPOINTS.observer = observe
    yield
    FAILPOINTS.observer = None


def sweep(world: World) -> dict[str, SweepAction]:
    report = sweep_uploads(world.url, dry_run=False, settings=world.settings, clock=world.clock)
    return {file.key: file.action for file in report.uploads}


# Refused completions.


# Zombies and their successors.


def test_a_zombie_whose_commit_is_refused_does_not_abort_its_successors_job(world: World) -> None:
    zombie = world.open_job("sales")
    zombie.expect([ExpectedTask(task_id=TaskId("never"))])
    successor = world.open_job("sales")
    write(successor, "t", NEW)
    with pytest.raises(FencedError):
        zombie.commit()
    zombie.close()
    successor.commit()
    assert world.visible() == NEW


def test_the_loser_of_a_rival_commit_returns_the_winners_receipt(world: World) -> None:
    job = world.open_job("sales")
    write(job, "t", NEW)
    receipts = []
    for point in ("load.list.after", "plan.create.before", "plan.uploads.before"):
        with at(point, lambda: receipts.append(world.attach(job.job_id).commit())):
            try:
                receipts.append(job.commit())
            except FencedError:
                continue
    assert len(set(map(repr, receipts))) == 1
    assert world.visible() == NEW


def test_a_zombie_whose_plan_fails_does_not_pass_the_turn_in_which_its_job_was_decided(world: World) -> None:
    def successor() -> None:
        def die(name: str) -> None:
            if name == "outcome.create.before":
                raise Crash(name)

        FAILPOINTS.observer = die
        with pytest.raises(Crash):
            world.attach(job.job_id).commit()
        FAILPOINTS.observer = None
        died.append(job.phase())
        FAILPOINTS.arm({"plan.get.before": "refuse"})

    died: list[JobPhase] = []
    job = world.open_job("sales")
    write(job, "t", NEW)
    # The successor decides and dies. Then the store is busy once, while the zombie is still planning.
    with at("plan.uploads.before", successor):
        assert job.commit().files == 2
    assert (died, job.phase()) == ([JobPhase.DECIDED], JobPhase.COMMITTED)
    assert world.visible() == NEW


def test_the_retry_of_a_commit_that_met_a_busy_store_uses_the_same_turn(world: World) -> None:
    job = world.open_job("sales")
    write(job, "t", NEW)
    FAILPOINTS.arm({"plan.uploads.before": "refuse"})
    with pytest.raises(StoreUnavailableError):
        job.commit()
    assert job.commit().turn == 1


def test_the_next_job_passes_a_turn_whose_commit_met_a_conflict(world: World) -> None:
    world.run("old", {"old.csv": b"0"})
    job = world.open_job("sales")
    write(job, "t", NEW)
    (lost, *_) = next(job.pending_sets()).files
    world.store.abort_upload(lost.key, lost.upload.upload_id)
    with pytest.raises(UploadGoneError):
        job.commit()
    before_s = world.clock.now
    world.run("next", {"next.csv": b"3"})
    assert world.clock.now == before_s, "the next job waited for a turn that no job will use"
    assert world.visible() == {"old.csv": b"0", "next.csv": b"3"}


def test_workers_that_attach_with_only_the_job_id_write_for_its_driver(world: World) -> None:
    job = world.open_job("sales")
    for number, path in enumerate(NEW):
        write(world.attach(job.job_id), f"t{number}", {path: NEW[path]})
    assert job.commit().files == 2
    assert world.visible() == NEW


# Lost answers and a busy store.


@pytest.mark.parametrize("point", ["setup", "task-commit", "turn", "plan", "decide", "outcome", "end"])
def test_a_create_that_is_refused_once_is_retried(world: World, point: str) -> None:
    FAILPOINTS.arm({f"{point}.create.before": "refuse"})
    world.run("sales", NEW)
    assert world.visible() == NEW


def test_a_task_commit_without_an_answer_or_a_read_back_keeps_its_uploads(world: World) -> None:
    job = world.open_job("sales")
    attempt = job.attempt("t")
    with attempt.open("a.csv") as file:
        file.write(b"1")
    FAILPOINTS.arm({"task-commit.create.after": "lost", "task-commit.get.before": "refuse@2"})
    with pytest.raises(OutcomeUnknownError, match="it may exist"):
        attempt.commit()
    FAILPOINTS.arm({})
    attempt.abort()
    assert len(world.open_uploads()) == 1
    assert attempt.commit().task_id == "t"
    job.commit()
    assert world.visible() == {"a.csv": b"1"}


# Records and folders.


@pytest.mark.parametrize(
    "change", [{"short_id": "aa/../../victim"}, {"generation": 2}, {"name": "other"}, {"job_id": "other-g1"}]
)
def test_a_tampered_job_record_is_refused(world: World, change: dict[str, object]) -> None:
    job = world.open_job("sales")
    key = job._folder.key("job.json")
    world.store.put(key, json.dumps({**json.loads(world.store.get(key)), **change}).encode())
    victim = world.root / "victim"
    victim.mkdir()
    with pytest.raises(MalformedRecordError, match=r"job\.json"):
        world.attach(job.job_id)
    (found,) = world.recover()
    assert found.needs_an_operator
    assert victim.exists()
    job.close()


def test_a_reader_whose_listing_missed_an_outcome_reads_it_by_name(world: World) -> None:
    for name in ("one", "two", "three"):
        world.run(name, {f"{name}.csv": b"1"})
    log = world.store.pages

    class Behind:
        """A store whose second listing page is read after two more turns have ended."""

        def __getattr__(self, name: str) -> Any:
            return getattr(world.store, name)

        def pages(self, prefix: str = "", **options: Any) -> Iterator[Any]:
            for page in log(prefix, **options):
                yield [info for info in page if not info.key.endswith("00000002.json")]

    from lockgate.storage_core.commit.destination.log import DestinationLog

    assert len(DestinationLog(Behind()).manifest().files) == 3  # type: ignore[arg-type]


def test_a_recovery_of_a_mistyped_destination_writes_nothing_there(tmp_path: Path, world: World) -> None:
    with pytest.raises(ObjectNotFoundError):
        recover_job(str(tmp_path / "typo"), "sales-g1", settings=world.settings, clock=world.clock)
    assert not (tmp_path / "typo").exists()


def test_an_interrupted_removal_of_an_old_folder_is_finished(world: World) -> None:
    for _ in range(2):
        world.run("sales", NEW)
    world.store.delete("_lockgate/jobs/sales-g1/job.json")
    assert world.recover() == []
    sweep(world)
    found = list_jobs(world.url, settings=world.settings, clock=world.clock)
    assert [job.job_id for job in found] == ["sales-g2"]


def test_a_foreign_folder_among_the_jobs_is_skipped(world: World) -> None:
    world.run("sales", NEW)
    world.store.create("_lockgate/jobs/notes/readme.txt", b"x")
    assert [job.job_id for job in list_jobs(world.url, settings=world.settings)] == ["sales-g1"]
    assert sweep(world) == {}
    assert world.recover() == []


def test_a_resumed_job_waits_for_the_audit_that_it_requires(world: World) -> None:
    job = world.open_job("sales", on_lapse="resume", audit=True)
    job.expect([ExpectedTask(task_id=TaskId("t"))])
    write(job, "t", NEW)
    job.close()
    (found,) = world.recover()
    assert (found.action, found.ended) == (RecoveryAction.RESUME, JobPhase.OPEN)
    assert "its audit has not run" in found.detail
    job.record_audit(chosen=job.chosen_digest(), passed=True, suite="rows", summary={})
    (found,) = world.recover()
    assert found.ended is JobPhase.COMMITTED


def test_a_run_after_a_crash_during_an_abort_gets_a_new_generation(world: World) -> None:
    job = world.open_job("sales")
    write(job, "t", NEW)
    FAILPOINTS.arm({"end.put.before": "lost"})
    with pytest.raises(OutcomeUnknownError):
        job.abort()
    FAILPOINTS.arm({})
    assert job.phase() is JobPhase.ABORTING
    job.close()
    assert world.run("sales", NEW).job_id == "sales-g2"
    assert world.visible() == NEW
