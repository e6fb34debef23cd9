"""A scan of a prefix finds its jobs again after a complete failure, over every store."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lockgate.storage_core.commit.job import Job
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.commit.recovery.decision_table import RecoveryAction
from lockgate.storage_core.commit.recovery.prefix_scan import scan
from lockgate.storage_core.commit.recovery.recover import RecoveryResult
from lockgate.storage_core.commit.registry import queries as registry
from lockgate.storage_core.errors import DestinationNotFoundError, InvalidInputError
from lockgate.storage_core.journal.process_journal import configured_journal
from lockgate.storage_core.stores import Store
from tests.support.commit.crash_harness import die_at
from tests.support.commit.destination import ManualClock, World, write

LONG = 1_000_000.0


@pytest.fixture
def lake(
    kind: str,
    open_at: Callable[[str], Store],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> World:
    """Return a prefix with destinations below it, which can be a destination itself; without a journal."""
    if kind in {"moto", "fake-s3"}:
        endpoint = request.getfixturevalue(f"{kind.removesuffix('-s3')}_endpoint")
        monkeypatch.setenv("LOCKGATE_S3_ENDPOINT_URL", endpoint)
    elif kind == "s3-server":
        monkeypatch.setenv("LOCKGATE_S3_ENDPOINT_URL", os.environ["LOCKGATE_TEST_S3_ENDPOINT"])
    return World(tmp_path, open_at("lake").url)


def below(lake: World, name: str) -> World:
    return World(lake.root, f"{lake.url}/{name}", lake.clock, lake.options)


def under(world: World, journal: str, clock: ManualClock) -> World:
    url = f"sqlite:///{world.root / journal}.db"
    return World(world.root, world.url, clock, {**world.options, "journal_url": url})


def abandoned(world: World, name: str, path: str = "day=1/a.csv") -> Job:
    """Return an undecided job whose driver is gone."""
    job = world.open_job(name)
    write(job, "t", {path: b"1"})
    job.close()
    return job


def found_by(lake: World, *, dry_run: bool = False) -> dict[str, RecoveryResult]:
    results = list(scan(lake.url, dry_run=dry_run, settings=lake.settings, clock=lake.clock))
    found = {result.job_id: result for result in results}
    assert len(found) == len(results)
    return found


def test_a_scan_finds_every_destination_below_the_prefix_and_settles_its_jobs(lake: World) -> None:
    sales, web, idle = below(lake, "sales"), below(lake, "logs/web"), below(lake, "logs/idle")
    jobs = [abandoned(sales, "sales"), abandoned(web, "web")]
    jobs.append(idle.open_job("idle"))  # this job has no open upload
    jobs[-1].close()
    decided = sales.open_job("decided")
    write(decided, "t", {"b.csv": b"2"})
    die_at("complete.complete.before", decided.commit)
    lake.clock.now += LONG

    found = found_by(lake)

    assert {job: result.destination for job, result in found.items()} == {
        "sales-g1": sales.url,
        "decided-g1": sales.url,
        "web-g1": web.url,
        "idle-g1": idle.url,
    }
    assert [job.phase() for job in jobs] == [JobPhase.FAILED] * 3
    assert decided.phase() is JobPhase.COMMITTED
    assert (sales.visible(), web.visible()) == ({"b.csv": b"2"}, {})
    assert [world.open_uploads() for world in (sales, web, idle)] == [[], [], []]
    assert found_by(lake) == {}


def test_a_dry_run_of_a_scan_changes_nothing(lake: World) -> None:
    sales = below(lake, "sales")
    job = abandoned(sales, "sales")
    lake.clock.now += LONG

    (found,) = found_by(lake, dry_run=True).values()

    assert (found.action, found.ended, job.phase()) == (RecoveryAction.ABORT, JobPhase.OPEN, JobPhase.OPEN)
    assert len(sales.open_uploads()) == 1


def test_only_jobs_with_uploads_below_the_prefix_are_settled_at_a_destination_above_it(lake: World) -> None:
    here, elsewhere = abandoned(lake, "here"), abandoned(lake, "elsewhere", "day=10/a.csv")
    lake.clock.now += LONG

    (found,) = found_by(below(lake, "day=1")).values()

    assert (found.job_id, found.ended) == (here.job_id, JobPhase.FAILED)
    assert elsewhere.phase() is JobPhase.OPEN


def test_a_neighbour_with_the_same_name_prefix_is_not_scanned(lake: World) -> None:
    job = abandoned(below(lake, "sales0"), "theirs")
    lake.clock.now += LONG

    with pytest.raises(DestinationNotFoundError, match="check the spelling"):
        found_by(below(lake, "sales"))

    assert job.phase() is JobPhase.OPEN


def test_a_nested_destination_is_found(lake: World) -> None:
    outer, inner = abandoned(lake, "outer"), abandoned(below(lake, "day=1/inner"), "inner")
    lake.clock.now += LONG

    assert set(found_by(lake)) == {outer.job_id, inner.job_id}

    assert (outer.phase(), inner.phase()) == (JobPhase.FAILED, JobPhase.FAILED)


def test_an_unreadable_claim_hides_no_job(lake: World) -> None:
    sales = below(lake, "sales")
    job = abandoned(sales, "sales")
    sales.store.put(f"_lockgate/ids/{job.short_id}", b"?")
    lake.clock.now += LONG

    assert found_by(lake)[job.job_id].ended is JobPhase.FAILED


def test_without_the_journal_young_jobs_are_kept_old_ones_settled_and_all_registered(lake: World) -> None:
    clock = ManualClock(time.time())  # the age of a job is taken from the store's clock
    lost, new = under(lake, "lost", clock), under(lake, "new", clock)
    sales = below(lost, "sales")
    job = abandoned(sales, "sales")

    assert found_by(new)[job.job_id].action is RecoveryAction.LEAVE
    clock.now += LONG
    assert found_by(new)[job.job_id].ended is JobPhase.FAILED

    journal = configured_journal(new.settings, clock)
    assert journal is not None
    with journal.reading() as reading:
        (known,) = registry.jobs(reading)
    assert (known.destination, known.job_id, known.phase) == (sales.url, job.job_id, "failed")
    assert sales.open_uploads() == []


def test_a_scan_of_an_invalid_prefix_names_the_remedy(lake: World) -> None:
    with pytest.raises(InvalidInputError, match="write s3://bucket/prefix"):
        list(scan("ftp://lake", settings=lake.settings))
