"""Recovery and the sweep, for each row of the decision table."""

from __future__ import annotations

import pytest

from lockgate.storage_core.commit.job_summary import list_jobs
from lockgate.storage_core.commit.leases.job_lease import JobLeaseState
from lockgate.storage_core.commit.records.codec import encode
from lockgate.storage_core.commit.records.expected_tasks import ExpectedTask
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.commit.records.report import Ended
from lockgate.storage_core.commit.recovery.decision_table import RecoveryAction
from lockgate.storage_core.commit.recovery.recover import RecoveryResult, recover_job
from lockgate.storage_core.commit.recovery.upload_sweep import SweepAction, sweep_uploads
from lockgate.storage_core.errors import AuditFailedError, ConflictError, ObjectNotFoundError
from lockgate.storage_core.ids import new_token
from tests.support.commit.destination import World, write

DAY = 86_400.0


def recover(world: World, job_id: str, *, dry_run: bool = False) -> RecoveryResult:
    return recover_job(world.url, job_id, dry_run=dry_run, settings=world.settings, clock=world.clock)


def sweep(world: World, *, dry_run: bool = False) -> dict[str, SweepAction]:
    report = sweep_uploads(world.url, dry_run=dry_run, settings=world.settings, clock=world.clock)
    return {file.key: file.action for file in report.uploads}


def test_a_live_job_is_left_alone(world: World) -> None:
    job = world.open_job("sales")
    write(job, "t", {"a.csv": b"1"})
    found = recover(world, job.job_id)
    assert (found.action, found.lease, found.ended) == (
        RecoveryAction.LEAVE,
        JobLeaseState.LIVE,
        JobPhase.OPEN,
    )
    job.commit()
    assert world.visible() == {"a.csv": b"1"}


def test_a_lapsed_job_is_aborted_and_a_dry_run_only_reports_it(world: World) -> None:
    job = world.open_job("sales")
    write(job, "t", {"a.csv": b"1"})
    job.close()
    world.clock.now += world.settings.lease_hard_s
    dry = recover(world, job.job_id, dry_run=True)
    assert (dry.action, dry.ended) == (RecoveryAction.ABORT, JobPhase.OPEN)
    assert len(world.open_uploads()) == 1
    assert recover(world, job.job_id).ended is JobPhase.FAILED
    assert (world.visible(), world.open_uploads()) == ({}, [])


def test_a_lapsed_job_whose_tasks_all_committed_is_resumed_if_that_is_its_policy(world: World) -> None:
    job = world.open_job("sales", on_lapse="resume")
    job.expect([ExpectedTask(task_id="t"), ExpectedTask(task_id="u")])  # type: ignore[arg-type]
    write(job, "t", {"a.csv": b"1"})
    job.close()
    world.clock.now += world.settings.lease_hard_s
    waiting = recover(world, job.job_id)
    assert (waiting.action, waiting.ended) == (RecoveryAction.RESUME, JobPhase.OPEN)
    assert "1 of 2 tasks have not committed" in waiting.detail
    write(job, "u", {"b.csv": b"2"})
    assert recover(world, job.job_id).ended is JobPhase.COMMITTED
    assert world.visible() == {"a.csv": b"1", "b.csv": b"2"}


def test_a_job_without_a_lease_is_left_alone_while_anything_in_it_is_young(world: World) -> None:
    import time

    job = world.open_job("sales")
    job.close()
    world.store.delete(job._folder.key("lease.json"))
    world.clock.now = time.time()
    assert recover(world, job.job_id).action is RecoveryAction.LEAVE
    world.clock.now += world.settings.orphan_age_s + 1
    assert recover(world, job.job_id).ended is JobPhase.FAILED


def test_contradicting_or_unreadable_markers_are_reported_and_nothing_is_touched(world: World) -> None:
    job = world.run("sales", {"a.csv": b"1"})
    both = Ended(job_id=job.job_id, ended="failed", ended_s=0.0)
    world.store.create(job._folder.key("COMMIT_FAIL"), encode(both))
    before = {info.key: info.version for page in world.store.pages() for info in page}
    found = recover(world, job.job_id)
    assert found.needs_an_operator
    assert "both COMMIT_SUCCESS and COMMIT_FAIL" in found.detail
    world.store.put(job._folder.key("COMMIT_STARTED"), b"{")
    assert recover(world, job.job_id).needs_an_operator
    after = {info.key: info.version for page in world.store.pages() for info in page}
    assert {key for key in after if after[key] != before.get(key)} == {job._folder.key("COMMIT_STARTED")}
    (listed,) = list_jobs(world.url, settings=world.settings, clock=world.clock)
    assert listed.phase is None
    assert "COMMIT_STARTED" in listed.detail


def test_the_error_for_a_missing_job_names_it(world: World) -> None:
    with pytest.raises(ObjectNotFoundError, match="no job ghost-g1"):
        recover(world, "ghost-g1")


def test_the_sweep_never_touches_uploads_of_a_running_job(world: World) -> None:
    job = world.open_job("sales")
    write(job, "t", {"a.csv": b"1"})
    assert set(sweep(world).values()) == {SweepAction.KEEP}
    world.clock.now += 30 * DAY  # the lease has lapsed: recovery must decide first
    assert set(sweep(world).values()) == {SweepAction.KEEP}
    job._lease._renew()
    job.commit()
    assert world.visible() == {"a.csv": b"1"}


def test_the_sweep_aborts_what_a_zombie_opened_after_its_jobs_end(world: World) -> None:
    job = world.open_job("sales")
    write(job, "t", {"a.csv": b"1"})
    zombie = job.attempt("t")
    job.commit()
    writer = zombie.open_upload("late.csv")
    writer.write(b"x" * (5 << 20))
    (key,) = (info for info in world.open_uploads())
    assert sweep(world, dry_run=True) == {key: SweepAction.ABORT}
    assert world.open_uploads() == [key]
    assert sweep(world) == {key: SweepAction.ABORT}
    assert world.open_uploads() == []
    writer.abort()


def test_an_upload_without_an_owner_is_aborted_by_the_second_sweep_if_no_job_may_write_it(
    world: World,
) -> None:
    world.run("done", {"a.csv": b"1"})
    world.store.begin_upload("whose.bin", new_token())
    assert sweep(world) == {"whose.bin": SweepAction.STAGE}
    world.clock.now += DAY - 1
    assert sweep(world) == {"whose.bin": SweepAction.STAGE}
    world.clock.now += 2
    job = world.open_job("at-work", unique_filenames=False)
    assert sweep(world) == {"whose.bin": SweepAction.KEEP}
    job.abort()
    assert sweep(world) == {"whose.bin": SweepAction.ABORT}
    assert world.open_uploads() == []


def test_the_sweep_of_a_destination_does_not_touch_its_neighbour(world: World) -> None:
    neighbour = World(world.root, f"{world.url}0", world.clock)
    neighbour.store.begin_upload("whose.bin", new_token())
    for _ in range(3):
        assert sweep(world) == {}
        world.clock.now += 2 * DAY
    assert neighbour.open_uploads() == ["whose.bin"]


def test_a_job_with_a_failed_or_missing_audit_is_never_committed(world: World) -> None:
    failed = world.open_job("failed", audit=True)
    write(failed, "t", {"a.csv": b"1"})
    failed.record_audit(chosen=failed.chosen_digest(), passed=False, suite="rows", summary={"rows": 0})
    with pytest.raises(AuditFailedError, match="the audit 'rows' failed"):
        failed.commit()
    missing = world.open_job("missing", audit=True)
    write(missing, "t", {"a.csv": b"1"})
    with pytest.raises(AuditFailedError, match="requires an audit"):
        missing.commit()
    assert (world.visible(), world.open_uploads()) == ({}, [])


def test_an_audit_during_which_a_task_attempt_commits_gets_no_verdict(world: World) -> None:
    job = world.open_job("sales", audit=True)
    write(job, "t", {"a.csv": b"1"})
    chosen = job.chosen_digest()
    world.clock.now += 1
    write(job, "t", {"a.csv": b"2"})
    with pytest.raises(ConflictError, match="committed during audit 'rows'"):
        job.record_audit(chosen=chosen, passed=True, suite="rows", summary={})
    with pytest.raises(AuditFailedError, match="there is none of exactly these data"):
        job.commit()


def test_a_passed_audit_is_bound_into_the_plan(world: World) -> None:
    job = world.open_job("sales", audit=True)
    write(job, "t", {"a.csv": b"1"})
    verdict = job.record_audit(chosen=job.chosen_digest(), passed=True, suite="rows", summary={"rows": 1})
    assert job.record_audit(chosen=job.chosen_digest(), passed=False, suite="rows", summary={}) == verdict
    job.commit()
    assert world.visible() == {"a.csv": b"1"}


def test_the_log_is_checkpointed_regularly_and_yields_the_same_state(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockgate.storage_core.commit.destination.log.CHECKPOINT_TURNS", 5)
    for number in range(8):
        world.run(f"job-{number}", {f"{number}.csv": b"1"})
    assert world.store.head("_lockgate/log/00000005.checkpoint").size > 0
    assert len(world.live()) == 8
    assert [len(world.manifest(as_of=turn).files) for turn in (3, 5)] == [3, 5]
    for turn in range(1, 5):
        world.store.delete(f"_lockgate/log/{turn:08d}.json")
    assert len(world.live()) == 8
