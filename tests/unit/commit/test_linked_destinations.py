"""All symbolic links to a directory name one destination: each job has one lease and one row."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from lockgate.storage_core.commit.destination.location import canonical_url, symlinked_url
from lockgate.storage_core.commit.leases.job_leases import LeasesByJob
from lockgate.storage_core.commit.leases.protocol import JobLeaseState
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.recovery.decision_table import RecoveryAction
from lockgate.storage_core.commit.recovery.expired_jobs import (
    UnendedJobs,
    expired_jobs,
    expired_jobs_at,
    recover_everything,
)
from lockgate.storage_core.commit.recovery.recover import recover_job
from lockgate.storage_core.commit.recovery.registry_rebuild import rescan
from lockgate.storage_core.commit.registry.queries import jobs
from lockgate.storage_core.commit.registry.rows import TaskAttempt
from lockgate.storage_core.errors import FencedError, InvalidInputError
from lockgate.storage_core.journal.entries.rows import Lease
from lockgate.storage_core.stores import open_store
from tests.support.commit.destination import World, write


@pytest.fixture
def by_link(journal_world: World) -> World:
    """Return the destination by a path that contains a symbolic link."""
    Path(journal_world.root, "linked").symlink_to(journal_world.root)
    return replace(journal_world, url=str(journal_world.root / "linked" / "dest"))


@contextmanager
def earlier_version(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep URLs as given, without resolving links, as earlier versions did."""
    with monkeypatch.context() as patched:
        patched.setattr("lockgate.storage_core.commit.destination.location.realpath", lambda path: path)
        yield


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
    real = f"file://{journal_world.url}"
    assert (canonical_url(journal_world.store), symlinked_url(journal_world.store)) == (real, None)
    assert (canonical_url(by_link.store), symlinked_url(by_link.store)) == (real, f"file://{by_link.url}")
    bucket = open_store("s3://lake/sales", by_link.settings)
    assert (canonical_url(bucket), symlinked_url(bucket)) == ("s3://lake/sales", None)


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


def test_a_job_named_by_registry_and_destination_is_settled_once(by_link: World) -> None:
    by_link.open_job("sales").close()
    by_link.clock.sleep(1_000_000)

    of_registry = expired_jobs(by_link.settings, by_link.clock)
    both = of_registry.union(expired_jobs_at(by_link.url, settings=by_link.settings, clock=by_link.clock))

    assert len(of_registry.expired) == 1
    assert both.expired == of_registry.expired


def test_a_job_set_up_before_links_were_resolved_keeps_its_lease(
    journal_world: World, by_link: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with earlier_version(monkeypatch):
        first = by_link.open_job("sales")
        assert known(by_link) == [(f"file://{by_link.url}", "open")]

    assert state(by_link.elsewhere(), first.job_id) is JobLeaseState.LIVE
    left = recover_job(by_link.url, first.job_id, settings=by_link.settings, clock=by_link.clock)
    assert (left.action, left.lease) == (RecoveryAction.LEAVE, JobLeaseState.LIVE)

    second = by_link.elsewhere().open_job("sales")
    by_link.clock.sleep(by_link.settings.commit_window_s + 1)
    with pytest.raises(FencedError):
        first.commit()
    assert known(by_link) == [(f"file://{journal_world.url}", "open")]
    second.commit()
    assert leases(by_link) == []


def test_a_job_that_lapsed_before_links_were_resolved_is_settled_under_one_name(
    journal_world: World, by_link: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with earlier_version(monkeypatch):
        by_link.open_job("sales").close()
    by_link.clock.sleep(1_000_000)

    (result,) = recover_everything(by_link.settings, clock=by_link.clock)

    assert result.action is RecoveryAction.ABORT
    assert known(by_link) == [(f"file://{journal_world.url}", "failed")]
    assert leases(by_link) == []
    assert expired_jobs(by_link.settings, by_link.clock) == UnendedJobs()


def test_rescan_removes_ended_jobs_under_the_link_name_and_keeps_those_under_way(
    journal_world: World, by_link: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with earlier_version(monkeypatch):
        by_link.run("ended", {"a.csv": b"1"})
        under_way = by_link.open_job("under-way")

    results = list(rescan(by_link.url, settings=by_link.settings, clock=by_link.clock))

    assert [(result.job_id, result.action) for result in results if result.now is None] == [
        ("ended-g1", "forget")
    ]
    assert (f"file://{by_link.url}", "committed") not in known(by_link)
    assert (f"file://{journal_world.url}", "committed") in known(by_link)
    under_way.commit()
    assert {place for place, _ in known(by_link)} == {f"file://{journal_world.url}"}
    assert leases(by_link) == []
