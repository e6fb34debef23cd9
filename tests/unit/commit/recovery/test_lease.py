"""A lost lease is never revived, and its former holder is fenced."""

from __future__ import annotations

import pytest

from lockgate.storage_core.commit.leases.job_lease import HeldLease, JobLeaseState
from lockgate.storage_core.commit.leases.leases_by_job import LeasesByJob
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.errors import FencedError
from tests.support.commit.destination import World, write


@pytest.fixture(params=["heartbeats", "journal"])
def either(world: World, request: pytest.FixtureRequest) -> World:
    """Return a destination for each kind of lease."""
    return world if request.param == "heartbeats" else request.getfixturevalue("journal_world")


@pytest.mark.parametrize("call", ["check", "suspend"])
def test_a_lease_is_not_brought_back_to_life_after_the_clean_up(either: World, call: str) -> None:
    with either.open_job("sales") as job:
        write(job, "t", {"a.csv": b"1"})
        folder, leases = JobFolder(either.store, job.job_id), LeasesByJob(either.settings, either.clock)
        zombie: HeldLease = leases.take(folder, job.record, job.job_attempt)
        either.attach(job.job_id).commit()
        calls = {"check": zombie.check, "suspend": lambda: zombie.suspend(60.0)}

        with pytest.raises(FencedError, match=r"change.* nothing more"):
            calls[call]()

        zombie.abandon()
        assert leases.look(folder, job.record).state is JobLeaseState.UNKNOWN
        assert not folder.has_lease()
        assert either.recover() == []
        assert either.visible() == {"a.csv": b"1"}


def test_a_driver_whose_job_was_taken_over_stops_before_the_decision(either: World) -> None:
    first = either.open_job("sales")
    write(first, "t", {"a.csv": b"1"})
    second = either.open_job("sales")
    either.clock.sleep(either.settings.commit_window_s)  # otherwise the lease is too young to be checked

    with pytest.raises(FencedError):
        first.commit()

    assert second.phase() == "open"
    write(second, "t", {"a.csv": b"2"})
    second.commit()
    assert either.visible() == {"a.csv": b"2"}


def test_a_suspended_job_is_left_alone_until_its_deadline(either: World) -> None:
    with either.open_job("sales") as job:
        write(job, "t", {"a.csv": b"1"})
        job.suspend(3_600.0)
    folder, leases = JobFolder(either.store, job.job_id), LeasesByJob(either.settings, either.clock)

    either.clock.sleep(3_599.0)
    assert leases.look(folder).state is JobLeaseState.SUSPENDED
    either.clock.sleep(1.0)
    assert leases.look(folder).state is JobLeaseState.LAPSED


def test_the_next_step_takes_over_a_suspended_job_and_commits_it(either: World) -> None:
    with either.open_job("sales") as job:
        write(job, "t", {"a.csv": b"1"})
    with either.attach(job.job_id) as step:
        step.take_lease()
        leases = LeasesByJob(either.settings, either.clock)
        view = leases.look(JobFolder(either.store, job.job_id))
        assert (view.state, view.job_attempt) == (JobLeaseState.LIVE, job.job_attempt)
        step.commit()

    assert either.visible() == {"a.csv": b"1"}


def test_a_lease_that_is_not_renewed_lapses_after_its_hard_limit(either: World) -> None:
    job = either.open_job("sales")
    leases, folder = LeasesByJob(either.settings, either.clock), JobFolder(either.store, job.job_id)

    either.clock.sleep(either.settings.lease_hard_s - 1)
    assert leases.look(folder).state is JobLeaseState.LIVE
    either.clock.sleep(1)
    assert leases.look(folder).state is JobLeaseState.OVERDUE
    either.clock.sleep(either.settings.lease_hard_s - 1)
    assert leases.look(folder).state is JobLeaseState.LAPSED
    job.close()


def test_the_stamp_of_each_holder_is_greater_than_the_previous_one(either: World) -> None:
    with either.open_job("sales") as job:
        leases, folder = LeasesByJob(either.settings, either.clock), JobFolder(either.store, job.job_id)
        stamps = []
        for _ in range(3):
            lease = leases.take(folder, job.record, job.job_attempt)
            stamps.append(lease.stamp)
            lease.abandon()
        assert stamps == sorted(set(stamps))
        job.abort()
