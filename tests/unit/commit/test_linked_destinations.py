"""All symbolic links to a directory name one destination: each job has one lease and one row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lockgate.storage_core.commit.leases.job_lease import JobLeaseState
from lockgate.storage_core.commit.leases.leases_by_job import LeasesByJob
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.recovery.decision_table import RecoveryAction
from lockgate.storage_core.commit.recovery.expired_jobs import (
    expired_jobs,
    expired_jobs_at,
)
from lockgate.storage_core.commit.recovery.recover import recover_job
from lockgate.storage_core.commit.recovery.registry_rebuild import rescan
from lockgate.storage_core.commit.registry.queries import jobs
from lockgate.storage_core.commit.registry.rows import TaskAttempt
from lockgate.storage_core.errors import FencedError, InvalidInputError
from lockgate.storage_core.journal.entries.lease_entries import Lease
from lockgate.storage_core.stores import open_store
from lockgate.storage_core.stores.open_store import canonical_url
from tests.support.commit.destination import World, write


@pytest.fixture
def by_link(journal_world: World) -> World:
    """Return the destination by a path that contains a symbolic link."""
    Path(journal_world.root, "linked").symlink_to(journal_world.root)
    return replace(journal_world, url=str(journal_world.root / "linked" / "dest"))


def known(world: World) -> list[tuple[str, str]]:
    with world.journal.reading() as reading:
        return [(job.destination, job.phase) for job in jobs(reading)]


def leases(world: World) -> list[str]:
    with world.journal.reading() as reading:
        return [lease.resource for lease in reading.where(Lease, {})]


def state(world: World, job_id: str) -> JobLeaseState:
    folder = JobFolder(world.store, job_id)  # type: ignore[arg-type]
    return LeasesByJob(world.settings, world.clock).look(folder).state


def test_a_directory_is_identified_by_its_resolved_path_and_a_bucket_by_its_url(
    journal_world: World, by_link: World
) -> None:
    assert canonical_url(journal_world.store) == canonical_url(by_link.store) == f"file://{journal_world.url}"
    assert canonical_url(open_store("s3://lake/sales", by_link.settings)) == "s3://lake/sales"


def test_opening_a_destination_with_circular_links_raises_an_error(by_link: World) -> None:
    circle = Path(by_link.root, "circle")
    circle.symlink_to(circle)
    assert canonical_url(open_store(f"file://{circle}/dest", by_link.settings)) == f"file://{circle}/dest"
    with pytest.raises(InvalidInputError, match="Too many levels of symbolic links"):
        list(rescan(str(circle / "dest"), settings=by_link.settings, clock=by_link.clock))


def test_a_driver_that_uses_another_link_finds_the_same_lease(journal_world: World, by_link: World) -> None:
    first = by_link.open_job("sales")
    assert state(journal_world.elsewhere(), first.job_id) is JobLeaseState.LIVE
    left = recover_job(journal_world.url, first.job_id, settings=by_link.settings, clock=by_link.clock)
    assert left.action is RecoveryAction.LEAVE

    second = journal_world.elsewhere().open_job("sales")
    by_link.clock.sleep(by_link.settings.commit_window_s + 1)
    with pytest.raises(FencedError):
        first.commit()
    assert len(leases(journal_world)) == 1
    write(second, "t", {"a.csv": b"1"})
    second.commit()

    assert known(journal_world) == [(f"file://{journal_world.url}", "committed")]
    with journal_world.journal.reading() as reading:
        assert [task.destination for task in reading.where(TaskAttempt, {})] == [
            f"file://{journal_world.url}"
        ]
    assert leases(journal_world) == []
    for world in (journal_world, by_link):
        assert list(rescan(world.url, settings=world.settings, clock=world.clock)) == []


def test_a_job_named_by_registry_and_destination_is_recovered_once(by_link: World) -> None:
    by_link.open_job("sales").close()
    by_link.clock.sleep(1_000_000)

    of_registry = expired_jobs(by_link.settings, by_link.clock)
    both = of_registry.union(expired_jobs_at(by_link.url, settings=by_link.settings, clock=by_link.clock))

    assert len(of_registry.expired) == 1
    assert both.expired == of_registry.expired
