"""Crash before and after every store and journal call of a job, recover elsewhere, and check the result.

See `test_commit_crash_points.py`; here the job's leases are in a journal. The old data or the whole job is
visible, and the registry agrees with the store, at the latest after it was rebuilt.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from lockgate.storage_core.commit.records.phase import TERMINAL, JobPhase
from lockgate.storage_core.commit.recovery.registry_rebuild import RescanResult, rescan
from lockgate.storage_core.commit.registry.queries import jobs
from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.journal.entries.lease_entries import Lease
from lockgate.storage_core.journal.process_journal import close_journals
from tests.conftest import Summarise
from tests.support.commit.crash_harness import OLD, assert_all_or_nothing, job, job_taken_back
from tests.support.commit.destination import World
from tests.support.commit.snapshots import Snapshot, observed, one_by_one, snapshots_of
from tests.support.soak import soak_only

pytestmark = pytest.mark.fault


@pytest.fixture(autouse=True)
def fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable fsync: only processes die here, not machines, so all written data remain."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture
def worlds(tmp_path: Path) -> Iterator[Iterator[World]]:
    """Yield fresh destinations with one published job, whose lease was in the journal, without end."""
    yield (published(tmp_path / f"world-{number}") for number in count())
    FAILPOINTS.observer = None
    FAILPOINTS.arm({})


def published(root: Path) -> World:
    world = one_by_one(World(root, str(root / "dest"))).with_journal()
    world.run("old", OLD)
    return world


def recovered(snapshot: Snapshot, ran: World, mode: str) -> bool:
    """Recover, check the destination and the registry, and return whether the job is published."""
    close_journals()  # the process is dead
    world, where = snapshot.move_to(ran), snapshot.points[0]
    results = world.recover()
    assert all(result.ended in TERMINAL for result in results), (where, results)
    is_there = assert_all_or_nothing(world, mode, where)
    assert all(found.now in {"committed", "failed"} for found in rescanned(world)), where
    assert rescanned(world) == [], where
    with world.journal.reading() as reading:
        assert {found.job_id: found.phase for found in jobs(reading)} == phases_of(world), where
        assert reading.where(Lease, {}) == [], where
    return is_there


def rescanned(world: World) -> list[RescanResult]:
    return list(rescan(world.url, settings=world.settings, clock=world.clock))


def phases_of(world: World) -> dict[str, str]:
    """Return the phase of each job in the store."""
    folders = Path(world.url, "_lockgate/jobs").iterdir()
    return {folder.name: str(world.attach(folder.name).phase()) for folder in folders}


@pytest.mark.parametrize("mode", [soak_only("append"), "replace"])
def test_a_crash_at_any_store_or_journal_call_leaves_all_or_nothing_and_a_correct_registry(
    worlds: Iterator[World], mode: str, tmp_path: Path, summarise: Summarise
) -> None:
    world = next(worlds)
    outcomes: list[bool] = []
    points: list[str] = []
    for snapshot in snapshots_of(world, lambda: job(world, mode), tmp_path / "snapshots"):
        outcomes += [recovered(snapshot, world, mode)] * len(snapshot.points)
        points += snapshot.points
    of_journal = [point for point in points if ".journal-" in point]
    summarise(
        f"{mode}: {len(points)} crash points, {len(of_journal)} of the journal, {sum(outcomes)} published"
    )
    for step in ("lease", "register"):
        assert {f"{step}.journal-write.before", f"{step}.journal-write.after"} <= set(of_journal)
    assert outcomes == sorted(outcomes)
    assert {False, True} == set(outcomes)


@pytest.mark.parametrize("how", [soak_only("abort"), "revert"])
def test_a_crash_of_a_job_that_is_rolled_back_leaves_nothing_of_it_and_a_correct_registry(
    worlds: Iterator[World], how: str, tmp_path: Path
) -> None:
    world = next(worlds)
    run = snapshots_of(world, lambda: job_taken_back(world, "magic", how), tmp_path / "snapshots")
    for snapshot in run:
        assert not recovered(snapshot, world, "replace"), snapshot.points[0]
    assert world.attach("new-g1").phase() is JobPhase.FAILED


@pytest.mark.soak
def test_a_crash_during_recovery_is_recovered(
    worlds: Iterator[World], tmp_path: Path, summarise: Summarise
) -> None:
    world = next(worlds)
    pairs = 0
    for first in snapshots_of(world, lambda: job(world, "replace"), tmp_path / "first")[::12]:
        close_journals()
        found = one_by_one(first.move_to(world))
        for second in snapshots_of(found, found.recover, tmp_path / "again"):
            recovered(second, found, "replace")
            pairs += len(second.points)
    summarise(f"replace: {pairs} pairs of crashes")
    assert pairs > 100


@pytest.mark.parametrize("action", ["lost", "refuse"])
@pytest.mark.soak
def test_a_journal_call_whose_answer_is_lost_or_refused_once_leaves_all_or_nothing(
    worlds: Iterator[World], action: str
) -> None:
    names: list[str] = []
    world = next(worlds)
    with observed(names.append):
        job(world, "replace")
    side = ".after" if action == "lost" else ".before"
    for name in dict.fromkeys(name for name in names if ".journal-" in name and name.endswith(side)):
        close_journals()
        shutil.rmtree(world.root)
        world = next(worlds)
        FAILPOINTS.arm({name: action})
        try:
            job(world, "replace")
        except LockgateError:
            raised = True
        else:
            raised = False
        finally:
            FAILPOINTS.arm({})
        if not raised:
            assert world.attach("new-g1").phase() is JobPhase.COMMITTED, name
        world.recover()
        there = assert_all_or_nothing(world, "replace", f"{name} {action}")
        assert there or raised, name
