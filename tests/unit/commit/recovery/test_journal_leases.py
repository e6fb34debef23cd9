"""Jobs with leases in the journal: recovery is prompt with the journal, and safe without it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import update

from lockgate.storage_core.commit.decide.turn import TURN_WAIT_S
from lockgate.storage_core.commit.leases.job_lease import JobLeaseState, JobLeaseView
from lockgate.storage_core.commit.leases.leases_by_job import LeasesByJob
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.commit.recovery.decision_table import RecoveryAction
from lockgate.storage_core.commit.recovery.recover import recover_job
from lockgate.storage_core.errors import (
    FencedError,
    JournalUnavailableError,
    LeaseHeldError,
    StateLostError,
    TurnBusyError,
)
from lockgate.storage_core.ids import job_resource
from lockgate.storage_core.journal import Leases
from lockgate.storage_core.journal.database.database import Database
from lockgate.storage_core.journal.database.schema import HEAD
from lockgate.storage_core.journal.entries.lease_entries import TakeLease
from lockgate.storage_core.journal.leases import renewer
from tests.support.commit.destination import World, write


def look(world: World, job_id: str) -> JobLeaseView:
    folder = JobFolder(world.store, job_id)  # type: ignore[arg-type]
    return LeasesByJob(world.settings, world.clock).look(folder)


def with_other_journal(world: World) -> World:
    """Return the same destination on a machine with a different journal."""
    return replace(world.elsewhere(), root=world.root / "elsewhere")


@contextmanager
def journal_down() -> Iterator[None]:
    """Make every journal unreachable."""

    def refuse(database: Database) -> None:
        raise JournalUnavailableError(f"journal {database.name}: down on purpose")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Database, "write", refuse)
        patch.setattr(Database, "snapshot", refuse)
        yield


def renewing_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == renewer.RENEWER]


def test_a_driver_that_slept_through_its_limit_commits_if_nobody_has_taken_its_job(
    journal_world: World,
) -> None:
    job = journal_world.open_job("sales")
    write(job, "t", {"a.csv": b"1"})
    journal_world.clock.sleep(journal_world.settings.lease_hard_s)

    job.commit()

    assert journal_world.visible() == {"a.csv": b"1"}


def test_a_driver_that_recovery_has_fenced_cannot_commit_over_it(journal_world: World) -> None:
    job = journal_world.open_job("sales")
    write(job, "t", {"a.csv": b"1"})
    leases = Leases(journal_world.elsewhere().journal)
    resource = job_resource(journal_world.store.url, job.job_id)
    with pytest.raises(LeaseHeldError):
        leases.take(resource, "recovery", purpose="recover", soft_s=1, hard_s=2)

    journal_world.clock.sleep(journal_world.settings.lease_hard_s)
    there = journal_world.elsewhere()
    Leases(there.journal).take(resource, "recovery", purpose="recover", soft_s=1, hard_s=2)

    with pytest.raises(FencedError):
        job.commit()
    assert look(there, job.job_id).state is JobLeaseState.LIVE


def test_no_renewal_writes_to_the_store_and_one_thread_renews_for_all_jobs(journal_world: World) -> None:
    before = len(renewing_threads())
    jobs = [journal_world.open_job(name) for name in ("one", "two", "three")]
    assert len(renewing_threads()) == before + 1

    standing = dict(records(journal_world))
    journal_world.clock.sleep(journal_world.settings.lease_soft_s)
    jobs[0].attempt("t").commit()  # checks all leases, which renews them
    journal_world.clock.sleep(journal_world.settings.lease_hard_s - 1)

    assert {look(journal_world, job.job_id).state for job in jobs} == {JobLeaseState.LIVE}
    new = {key for key, info in records(journal_world) if standing.get(key) != info}
    assert all("/tasks/" in key for key in new), new
    for job in jobs:
        job.abort()
    assert len(renewing_threads()) == before


def records(world: World) -> Iterator[tuple[str, object]]:
    for page in world.store.pages("_lockgate/"):
        for info in page:
            yield info.key, info


def test_a_process_with_another_journal_sees_an_unknown_lease_and_the_name_of_its_journal(
    journal_world: World,
) -> None:
    with journal_world.open_job("sales") as job:
        for there in (with_other_journal(journal_world), replace(journal_world, options={})):
            view = look(there, job.job_id)
            assert view.state is JobLeaseState.UNKNOWN
            assert f"#{journal_world.settings.journal}" in view.unread
            assert journal_world.journal.url in view.unread
            assert "LOCKGATE_JOURNAL_URL" in view.unread


def test_recovery_with_another_journal_waits_until_the_job_is_old(journal_world: World) -> None:
    job = journal_world.open_job("sales")
    write(job, "t", {"a.csv": b"1"})
    there = with_other_journal(journal_world)
    there.clock.now = max(info.modified_s for info in infos(there))

    young = recover_job(there.url, job.job_id, settings=there.settings, clock=there.clock)
    assert (young.action, job.phase()) == (RecoveryAction.LEAVE, JobPhase.OPEN)

    there.clock.sleep(there.settings.orphan_age_s)
    old = recover_job(there.url, job.job_id, settings=there.settings, clock=there.clock)
    assert (old.action, job.phase()) == (RecoveryAction.ABORT, JobPhase.FAILED)
    job.close()


def infos(world: World) -> list:  # type: ignore[type-arg]
    return [info for page in world.store.pages("") for info in page]


def test_a_task_in_an_executor_without_the_journal_continues(journal_world: World) -> None:
    job = journal_world.open_job("sales")
    executor = replace(journal_world.elsewhere(), options={"journal_url": "none"})
    there = executor.attach(job.job_id)
    assert there.job_attempt != job.job_attempt
    with executor.attach_to(job) as attached:
        write(attached, "t", {"a.csv": b"1"})

    job.commit()

    assert journal_world.visible() == {"a.csv": b"1"}


def test_a_driver_with_another_journal_commits_without_a_lease(
    journal_world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with journal_world.open_job("sales") as job:
        write(job, "t", {"a.csv": b"1"})
    there = with_other_journal(journal_world)

    with caplog.at_level(logging.WARNING):
        there.attach_to(job).commit()

    assert "continues without a lease" in caplog.text
    assert journal_world.visible() == {"a.csv": b"1"}


def test_a_job_waits_for_a_turn_whose_holder_has_an_unreadable_lease(
    journal_world: World,
) -> None:
    other = journal_world.open_job("other")
    write(other, "t", {"a.csv": b"1"})
    journal_world.clock.sleep(journal_world.settings.commit_window_s)
    with journal_down(), pytest.raises(JournalUnavailableError):
        other.commit()  # the job has taken its turn by then
    there = with_other_journal(journal_world)
    mine = there.open_job("mine")
    write(mine, "t", {"b.csv": b"2"})
    began_s = there.clock.now

    with pytest.raises(TurnBusyError, match="cannot be read"):
        mine.commit()

    assert there.clock.now - began_s >= TURN_WAIT_S
    other.commit()
    there.attach_to(mine).commit()  # the lease was not renewed while the test's clock advanced
    assert journal_world.visible() == {"a.csv": b"1", "b.csv": b"2"}


def test_a_job_whose_journal_was_replaced_stays_undecided_and_commits_with_the_right_one(
    journal_world: World,
) -> None:
    job = journal_world.open_job("sales")
    write(job, "t", {"a.csv": b"1"})
    journal_world.clock.sleep(journal_world.settings.commit_window_s)  # so that the commit renews its lease
    with identity(journal_world, "another"):
        with pytest.raises(StateLostError, match="the database was replaced"):
            job.commit()
        assert look(journal_world, job.job_id).state is JobLeaseState.UNKNOWN

    assert job.phase() is JobPhase.OPEN
    job.commit()
    assert journal_world.visible() == {"a.csv": b"1"}


@contextmanager
def identity(world: World, name: str) -> Iterator[None]:
    """Let the database hold a journal of another identity during the block."""
    journal = world.journal
    for found in (name, journal.identity):
        with journal.database.write() as connection:
            connection.execute(update(HEAD).values(identity=found))
        if found == name:
            yield


def test_without_its_journal_no_job_is_set_up_and_nothing_is_written(journal_world: World) -> None:
    assert journal_world.journal.status()
    with journal_down(), pytest.raises(JournalUnavailableError, match="down on purpose"):
        journal_world.open_job("sales")

    assert not Path(journal_world.url).exists()


def test_a_journal_that_is_down_at_the_decision_leaves_the_job_undecided(journal_world: World) -> None:
    job = journal_world.open_job("sales")
    write(job, "t", {"a.csv": b"1"})
    journal_world.clock.sleep(journal_world.settings.commit_window_s)

    with journal_down(), pytest.raises(JournalUnavailableError), job:
        job.commit()

    assert job.phase() is JobPhase.OPEN
    journal_world.attach(job.job_id).commit()
    assert journal_world.visible() == {"a.csv": b"1"}


def test_a_task_continues_while_its_journal_is_down(
    journal_world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with journal_world.open_job("sales") as job:
        write(job, "t", {"a.csv": b"1"})
    attached = journal_world.attach_to(job)
    with journal_down(), caplog.at_level(logging.WARNING):
        write(attached, "u", {"b.csv": b"2"})

    assert f"lockgate jobs rescan {journal_world.store.url}" in caplog.text
    attached.commit()
    assert journal_world.visible() == {"a.csv": b"1", "b.csv": b"2"}


def test_a_process_that_opens_its_own_job_twice_drives_it_with_the_newer_lease(journal_world: World) -> None:
    first = journal_world.open_job("sales")
    second = journal_world.attach_to(first)
    second.take_lease()
    first.close()  # releases a lease that is already lost

    journal_world.clock.sleep(journal_world.settings.commit_window_s)
    write(second, "t", {"a.csv": b"1"})
    second.commit()

    assert journal_world.visible() == {"a.csv": b"1"}


def test_the_lease_identifies_the_run_of_the_driver(journal_world: World) -> None:
    job = journal_world.open_job("sales")
    assert journal_world.elsewhere().attach(job.job_id).job_attempt == job.job_attempt

    resource = job_resource(journal_world.store.url, job.job_id)
    nameless = TakeLease(resource=resource, holder="x", purpose="take over", soft_s=1, hard_s=2)
    journal_world.journal.apply(nameless)
    assert look(journal_world, job.job_id).job_attempt is None
    job.close()
