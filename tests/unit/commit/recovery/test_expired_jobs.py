"""Recovery by the journal: the selection of jobs, and one recovery at a time for each job."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lockgate.storage_core.commit.job import Job
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.commit.recovery.decision_table import RecoveryAction
from lockgate.storage_core.commit.recovery.expired_jobs import (
    LIVE,
    RECOVERED,
    SUSPENDED,
    UnendedJobs,
    expired_jobs,
    expired_jobs_at,
    recover_everything,
)
from lockgate.storage_core.commit.recovery.lease_takeover import recovery_lease
from lockgate.storage_core.commit.recovery.recover import JobAt, RecoveryResult, recover_job
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.ids import job_resource
from lockgate.storage_core.journal import Journal, Leases, LeaseState
from lockgate.storage_core.journal.process_journal import configured_journal
from lockgate.storage_core.journal.write.head import SafeReason, enter_safe_mode
from tests.support.commit.crash_harness import die_at
from tests.support.commit.destination import World, write


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Return a destination whose jobs have leases in a journal."""
    options = {"journal_url": f"sqlite:///{tmp_path / 'journal.db'}"}
    return World(tmp_path, str(tmp_path / "dest"), options=options)


def beside(world: World, name: str) -> World:
    """Return another destination with the same journal."""
    return World(world.root, str(world.root / name), world.clock, world.options)


def under(world: World, journal: str) -> World:
    """Return the same destination with another journal."""
    options = {"journal_url": "none" if journal == "none" else f"sqlite:///{world.root / journal}"}
    return World(world.root, world.url, world.clock, options)


def journal_of(world: World) -> Journal:
    journal = configured_journal(world.settings, world.clock)
    assert journal is not None
    return journal


def lapse(world: World) -> None:
    """Let every lease lapse in the eyes of this process, which has looked before."""
    if world.settings.has_journal:
        unended(world)
    world.clock.sleep(world.settings.lease_hard_s)


def abandoned(world: World, name: str = "sales") -> Job:
    """Return an undecided job whose driver is gone."""
    job = world.open_job(name)
    write(job, "t", {"a.csv": b"1"})
    job.close()
    return job


def decided(world: World, name: str = "sales") -> Job:
    """Return a job whose driver has just died in its commit."""
    job = world.open_job(name)
    write(job, "t", {"a.csv": b"1"})
    die_at("complete.complete.before", job.commit)
    return job


def unended(world: World) -> UnendedJobs:
    return expired_jobs(world.settings, world.clock)


def recover_lapsed_jobs(world: World, *, dry_run: bool = False) -> dict[str, RecoveryResult]:
    results = recover_everything(world.settings, dry_run=dry_run, clock=world.clock)
    return {result.job_id: result for result in results}


def recover(world: World, job: Job, *, dry_run: bool = False) -> RecoveryResult:
    return recover_job(
        job.destination, job.job_id, dry_run=dry_run, settings=world.settings, clock=world.clock
    )


def lease_of(world: World, job: Job) -> LeaseState | None:
    view = Leases(journal_of(world)).look(job_resource(job.destination, job.job_id))
    return None if view is None else view.state


def test_only_lapsed_jobs_are_recovered_at_every_destination(world: World) -> None:
    other = beside(world, "other")
    first, second = abandoned(world), abandoned(other, "elsewhere")
    suspended = other.open_job("suspended")
    suspended.suspend(timeout_s=1_000_000)
    lapse(world)
    live = world.open_job("live")

    found = unended(world)
    assert found.left_alone == {LIVE: 1, SUSPENDED: 1}
    assert set(found.expired) == {JobAt(job.destination, job.job_id) for job in (first, second)}
    reported: list[tuple[str, int, int]] = []
    results = list(
        recover_everything(world.settings, clock=world.clock, progress=lambda *step: reported.append(step))
    )

    assert {(r.destination, r.job_id, r.action) for r in results} == {
        (job.destination, job.job_id, RecoveryAction.ABORT) for job in (first, second)
    }
    assert [job.phase() for job in (first, second)] == [JobPhase.FAILED, JobPhase.FAILED]
    assert [job.phase() for job in (suspended, live)] == [JobPhase.OPEN, JobPhase.OPEN]
    assert reported == [("recover", 1, 2), ("recover", 2, 2)]
    assert unended(world) == UnendedJobs(left_alone={LIVE: 1, SUSPENDED: 1})
    live.abort()


def test_a_dry_run_takes_no_lease_and_changes_nothing(world: World) -> None:
    job = abandoned(world)
    lapse(world)

    (found,) = recover_lapsed_jobs(world, dry_run=True).values()

    assert (found.action, found.ended) == (RecoveryAction.ABORT, JobPhase.OPEN)
    assert lease_of(world, job) is LeaseState.HARD
    assert len(world.open_uploads()) == 1


def test_a_decided_job_is_rolled_forward_though_its_driver_may_live(world: World) -> None:
    job = decided(world)
    assert lease_of(world, job) is LeaseState.HELD

    (found,) = recover_lapsed_jobs(world).values()

    assert (found.action, found.ended) == (RecoveryAction.ROLL_FORWARD, JobPhase.COMMITTED)
    assert world.visible() == {"a.csv": b"1"}
    assert lease_of(world, job) is None
    assert unended(world) == UnendedJobs()


def test_a_job_that_only_a_driver_can_resume_is_given_back(world: World) -> None:
    job = world.open_job("sales", on_lapse="resume")
    job.close()
    attempt = job.job_attempt
    lapse(world)

    found = recover(world, job)

    assert (found.action, found.ended) == (RecoveryAction.RESUME, JobPhase.OPEN)
    assert lease_of(world, job) is LeaseState.FREE
    assert world.attach(job.job_id).job_attempt == attempt


def test_while_one_recovery_settles_a_job_others_leave_it_alone(world: World) -> None:
    job = decided(world)
    lapse(world)
    folder = JobFolder(world.store, job.job_id)

    with recovery_lease(journal_of(world), folder, settings=world.settings, clock=world.clock):
        assert unended(world).left_alone == {RECOVERED: 1}
        found = recover(world, job)
        assert (found.action, found.ended) == (RecoveryAction.LEAVE, JobPhase.DECIDED)
        assert "another recovery has held its lease since stamp" in found.detail
        assert not found.needs_an_operator

    assert recover(world, job).ended is JobPhase.COMMITTED


def test_the_next_recovery_takes_over_the_job_of_a_recovery_that_died(world: World) -> None:
    job = abandoned(world)
    lapse(world)
    die_at("abort-uploads.uploads.before", lambda: recover(world, job))
    assert lease_of(world, job) is LeaseState.RECOVERING
    assert recover(world, job).action is RecoveryAction.LEAVE
    lapse(world)

    assert recover(world, job).ended is JobPhase.FAILED
    assert world.open_uploads() == []


def test_the_next_recovery_drops_a_lease_taken_while_the_job_was_ending(world: World) -> None:
    job = world.run("sales", {"a.csv": b"1"})
    resource = job_resource(job.destination, job.job_id)
    Leases(journal_of(world)).take(resource, "died", purpose="recover", soft_s=1.0, hard_s=1.0)
    assert unended(world) == UnendedJobs()
    lapse(world)
    assert unended(world).expired == (JobAt(job.destination, job.job_id),)

    (found,) = recover_lapsed_jobs(world).values()

    assert (found.action, found.ended) == (RecoveryAction.CLEAN_UP, JobPhase.COMMITTED)
    assert lease_of(world, job) is None
    assert unended(world) == UnendedJobs()


def test_recovery_in_safe_mode_leaves_all_jobs_and_reports_none_as_faulty(world: World) -> None:
    lapsed, rolling = abandoned(world, "lapsed"), decided(world, "rolling")
    lapse(world)
    journal = journal_of(world)
    with journal.database.write() as connection:
        enter_safe_mode(connection, journal.name, SafeReason.RESTORED, "lost", world.clock.now)

    for dry_run in (True, False):
        found = recover_lapsed_jobs(world, dry_run=dry_run)
        assert {r.action for r in found.values()} == {RecoveryAction.LEAVE}
        assert all("safe mode" in r.detail and not r.needs_an_operator for r in found.values())
        assert [job.phase() for job in (lapsed, rolling)] == [JobPhase.OPEN, JobPhase.DECIDED]


def test_the_report_of_a_job_whose_folder_was_removed_by_hand_names_the_remedy(world: World) -> None:
    abandoned(world)
    lapse(world)
    shutil.rmtree(world.url)

    (found,) = recover_lapsed_jobs(world).values()

    assert (found.ended, found.needs_an_operator) == (None, True)
    assert f"`lockgate jobs rescan {found.destination}`" in found.detail


def test_listing_jobs_of_all_destinations_requires_a_journal(world: World) -> None:
    alone = under(world, "none")
    job = abandoned(alone)

    with pytest.raises(InvalidInputError, match="LOCKGATE_JOURNAL_URL=none"):
        recover_lapsed_jobs(alone)

    assert expired_jobs_at(alone.url, settings=alone.settings, clock=alone.clock).left_alone == {LIVE: 1}
    lapse(alone)
    found = expired_jobs_at(alone.url, settings=alone.settings, clock=alone.clock)
    assert found.expired == (JobAt(job.destination, job.job_id),)
    assert recover(alone, job).ended is JobPhase.FAILED


def test_a_job_found_in_two_ways_is_listed_once() -> None:
    a, b = JobAt("file:///a", "x-g1"), JobAt("file:///a", "y-g1")  # type: ignore[arg-type]

    both = UnendedJobs(expired=(a,), left_alone={LIVE: 1}).union(
        UnendedJobs(expired=(a, b), left_alone={LIVE: 2, SUSPENDED: 1})
    )

    assert both == UnendedJobs(expired=(a, b), left_alone={LIVE: 3, SUSPENDED: 1})
