"""A wall clock that jumps neither fences a live driver nor keeps the job of a dead one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from lockgate.storage_core.commit.leases.job_lease import HeldLease, JobLeaseState
from lockgate.storage_core.commit.leases.leases_by_job import LeasesByJob
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.commit.recovery.decision_table import RecoveryAction
from lockgate.storage_core.commit.recovery.expired_jobs import expired_jobs, recover_everything
from lockgate.storage_core.commit.recovery.recover import recover_job
from lockgate.storage_core.errors import LeaseHeldError
from lockgate.storage_core.ids import job_resource
from lockgate.storage_core.journal import Leases
from lockgate.storage_core.journal.process_journal import configured_journal
from tests.support.commit.destination import ManualClock, World, write

HOUR_S = 3600.0


@dataclass
class SharedClock(ManualClock):
    """A clock during whose sleeps another process does something."""

    meanwhile: Callable[[], object] = bool

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.meanwhile()


@pytest.fixture(params=["heartbeats", "journal"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    url = "none" if request.param == "heartbeats" else f"sqlite:///{tmp_path / 'journal.db'}"
    return World(tmp_path, str(tmp_path / "dest"), SharedClock(), {"journal_url": url})


@pytest.fixture
def journaled(tmp_path: Path) -> World:
    options = {"journal_url": f"sqlite:///{tmp_path / 'journal.db'}"}
    return World(tmp_path, str(tmp_path / "dest"), SharedClock(), options)


def driven(world: World) -> tuple[JobFolder, HeldLease]:
    """Return an open job, and the lease of its driver."""
    job = world.open_job("sales")
    write(job, "t", {"a.csv": b"1"})
    folder = JobFolder(world.store, job.job_id)
    return folder, LeasesByJob(world.settings, world.clock).take(folder, folder.job(), job.job_attempt)


def recover(world: World, folder: JobFolder):  # type: ignore[no-untyped-def]
    return recover_job(world.url, folder.job_id, settings=world.settings, clock=world.clock)


def test_a_clock_that_jumps_an_hour_forward_leaves_a_live_driver_its_job(world: World) -> None:
    folder, lease = driven(world)
    world.clock.jump(HOUR_S)
    world.clock.meanwhile = lease.check  # type: ignore[attr-defined]  # the driver renews while it is watched

    found = recover(world, folder)

    assert (found.action, folder.phase()) == (RecoveryAction.LEAVE, JobPhase.OPEN)
    lease.check()


def test_the_driver_itself_goes_on_after_a_jump_of_an_hour(world: World) -> None:
    _, lease = driven(world)
    for jump_s in (HOUR_S, -HOUR_S):
        world.clock.jump(jump_s)
        lease.check()


def test_a_clock_that_is_set_back_an_hour_delays_the_recovery_of_a_dead_driver_by_one_limit(
    world: World,
) -> None:
    folder, lease = driven(world)
    lease.abandon()
    world.clock.jump(-HOUR_S)
    died_s = world.clock.monotonic_s()

    found = recover(world, folder)

    assert (found.action, folder.phase()) == (RecoveryAction.ABORT, JobPhase.FAILED)
    assert world.clock.monotonic_s() - died_s <= world.settings.lease_hard_s


def test_a_job_that_recovery_has_watched_before_is_not_watched_again(world: World) -> None:
    folder, lease = driven(world)
    lease.abandon()
    leases = LeasesByJob(world.settings, world.clock)
    leases.look(folder)
    world.clock.sleep(world.settings.lease_hard_s)
    since_s = world.clock.monotonic_s()

    assert leases.look(folder).state is JobLeaseState.LAPSED
    assert recover(world, folder).action is RecoveryAction.ABORT
    assert world.clock.monotonic_s() == since_s


def test_the_leases_of_many_jobs_are_watched_together(journaled: World) -> None:
    for name in ("a", "b", "c"):
        journaled.open_job(name).close()
    journaled.clock.sleep(journaled.settings.lease_hard_s)
    since_s = journaled.clock.monotonic_s()

    results = list(recover_everything(journaled.settings, clock=journaled.clock))

    assert {result.action for result in results} == {RecoveryAction.ABORT}
    watched_s = journaled.clock.monotonic_s() - since_s  # each thread moves the shared clock
    assert watched_s <= 3 * journaled.settings.lease_hard_s
    assert expired_jobs(journaled.settings, journaled.clock).expired == ()


def test_a_renewal_between_the_second_look_and_the_takeover_keeps_the_lease(journaled: World) -> None:
    folder, lease = driven(journaled)
    journal = configured_journal(journaled.settings, journaled.clock)
    assert journal is not None
    leases, resource = Leases(journal), job_resource(journaled.store.url, folder.job_id)
    journaled.clock.sleep(journaled.settings.lease_hard_s)
    seen = leases.look(resource)
    assert seen is not None
    lease.check()

    with pytest.raises(LeaseHeldError, match="nothing was changed"):
        leases.take(resource, "r", purpose="recover", soft_s=1, hard_s=2, seen=seen.lease)

    lease.check()


def test_a_dry_run_says_how_long_recovery_would_watch(world: World) -> None:
    folder, lease = driven(world)
    lease.abandon()
    world.clock.sleep(world.settings.lease_hard_s)

    found = recover_job(world.url, folder.job_id, dry_run=True, settings=world.settings, clock=world.clock)

    assert (found.action, folder.phase()) == (RecoveryAction.ABORT, JobPhase.OPEN)
    assert "if its lease is not renewed within 120 s" in found.detail
