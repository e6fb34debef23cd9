"""Crash before and after every storage call of a job, recover from another process, and check the result.

A dead process leaves the state of the directory at its death. So one run of every committer is observed, and
the state at each of its calls is recovered by another client; calls without a change in between share a
state. A test for `magic` shows that a run that really dies leaves the same state; `test_commit_kill.py` shows
it with real processes and kill -9.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from lockgate.storage_core.commit.committers import COMMITTERS
from lockgate.storage_core.commit.records.phase import TERMINAL, JobPhase
from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.failpoints import FAILPOINTS
from tests.conftest import Summarise
from tests.support.commit.crash_harness import (
    LOSER,
    MODES,
    OLD,
    adopted_job,
    assert_all_or_nothing,
    job,
    job_taken_back,
    published_by,
)
from tests.support.commit.destination import World, crash_at
from tests.support.commit.snapshots import Snapshot, observed, one_by_one, snapshots_of
from tests.support.soak import rounds, sample

pytestmark = pytest.mark.fault

every_committer = pytest.mark.parametrize("committer", COMMITTERS)
early_and_late = pytest.mark.parametrize("committer", ["magic", "file-v2"])
"""Committers that show files with the job commit, and before it; the others go the same ways."""
every_mode = pytest.mark.parametrize("mode", MODES)


@pytest.fixture(autouse=True)
def fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable fsync: only processes die here, not machines, so all written data remain."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture
def worlds(tmp_path: Path) -> Iterator[Iterator[World]]:
    """Yield fresh destinations with one published job, without end."""
    world = one_by_one(World(tmp_path / "first", str(tmp_path / "first" / "dest")))
    published = snapshots_of(world, lambda: world.run("old", OLD), tmp_path / "snapshots")[-1]
    yield (published.copy_to(tmp_path / f"copy-{number}") for number in count())
    FAILPOINTS.observer = None
    FAILPOINTS.arm({})


def snapshots_of_job(world: World, mode: str, committer: str) -> list[Snapshot]:
    """Save the state that a crash of the job leaves at every failpoint."""
    watched = one_by_one(world)
    return snapshots_of(watched, lambda: job(watched, mode, committer), world.root.parent)


def recovered(snapshot: Snapshot, mode: str, committer: str, where: str) -> bool:
    """Recover the remaining state from another client, check it, and return whether the job is published."""
    world = snapshot.world()
    before = world.visible()
    assert mode == "replace" or set(OLD.items()) <= set(before.items()), f"{where}: older data are missing"
    if COMMITTERS[committer].visible_at == "job commit":
        assert LOSER not in before.values(), where
    results = world.recover()
    assert all(result.ended in TERMINAL for result in results), (where, results)
    assert not Path(world.url, "_temporary").exists(), where
    return assert_all_or_nothing(world, mode, where, committer)


@every_mode
@every_committer
def test_a_crash_at_any_storage_call_leaves_all_or_nothing(
    worlds: Iterator[World], mode: str, committer: str, summarise: Summarise
) -> None:
    outcomes: list[bool] = []
    for snapshot in snapshots_of_job(next(worlds), mode, committer):
        outcomes += [recovered(snapshot, mode, committer, snapshot.points[0])] * len(snapshot.points)
    summarise(f"{committer}, {mode}: {len(outcomes)} crash points, {sum(outcomes)} published, rest undone")
    assert len(outcomes) > 100
    # The job is undone before the decision and published after it: the state switches once.
    assert outcomes == sorted(outcomes)
    assert {False, True} == set(outcomes)


@every_mode
def test_a_crash_of_a_job_of_sparks_own_writer_leaves_all_or_nothing(
    worlds: Iterator[World], mode: str
) -> None:
    watched = one_by_one(next(worlds))
    taken = snapshots_of(watched, lambda: adopted_job(watched, mode), watched.root.parent)
    outcomes = [recovered(snapshot, mode, "magic", snapshot.points[0]) for snapshot in taken]
    assert outcomes == sorted(outcomes)
    assert {False, True} == set(outcomes)


@early_and_late
@pytest.mark.parametrize("how", ["abort", "revert"])
def test_a_crash_of_a_job_that_is_rolled_back_leaves_nothing_of_it(
    worlds: Iterator[World], committer: str, how: str, summarise: Summarise
) -> None:
    world = one_by_one(next(worlds))
    points = 0
    for snapshot in snapshots_of(world, lambda: job_taken_back(world, committer, how), world.root.parent):
        assert not recovered(snapshot, "replace", committer, snapshot.points[0])
        points += len(snapshot.points)
    assert world.attach("new-g1").phase() is JobPhase.FAILED
    summarise(f"{committer}, {how}: {points} crash points")


@every_mode
@early_and_late
def test_a_crash_during_recovery_is_recovered(
    worlds: Iterator[World], mode: str, committer: str, tmp_path: Path, summarise: Summarise
) -> None:
    pairs = 0
    for first in snapshots_of_job(next(worlds), mode, committer)[:: rounds(25, 3)]:
        world = one_by_one(first.world())
        for second in snapshots_of(world, world.recover, tmp_path / "again"):
            recovered(second, mode, committer, f"{first.points[0]}, then {second.points[0]}")
            pairs += len(second.points)
    summarise(f"{committer}, {mode}: {pairs} pairs of crashes")
    assert pairs > rounds(25, 200)


@every_mode
def test_a_run_that_really_dies_leaves_the_same_state_as_a_snapshot(
    worlds: Iterator[World], mode: str
) -> None:
    outcomes = []
    for number in range(0, 400, 7):
        world = next(worlds)
        where = crash_at(number, lambda world=world: job(world, mode))  # type: ignore[misc]
        if where is None:
            break
        results = world.recover()
        assert all(result.ended in TERMINAL for result in results), (where, results)
        outcomes.append(assert_all_or_nothing(world, mode, where))
    assert outcomes == sorted(outcomes)
    assert {False, True} == set(outcomes)


@every_committer
def test_a_reader_of_the_log_sees_whole_jobs_at_every_storage_call(
    worlds: Iterator[World], committer: str
) -> None:
    world, mode = next(worlds), "replace"
    seen: list[dict[str, int]] = []

    def look(name: str) -> None:
        FAILPOINTS.observer = None
        live = world.live()
        if not seen or seen[-1] != live:
            seen.append(live)
        FAILPOINTS.observer = look

    with observed(look):
        job(world, mode, committer)
    before, after = seen
    assert len(before) == len(OLD)
    assert after == world.keys()
    assert len(after) == len(published_by(mode, committer))


@early_and_late
@pytest.mark.parametrize("action", ["lost", "refuse"])
def test_an_answer_that_is_lost_or_refused_once_leaves_all_or_nothing(
    worlds: Iterator[World], committer: str, action: str
) -> None:
    names: list[str] = []
    world = next(worlds)
    with observed(names.append):
        job(world, "replace", committer)
    side = ".after" if action == "lost" else ".before"
    points = list(dict.fromkeys(name for name in names if name.endswith(side)))
    for name in sample(points, every=3, offset=len(committer)):
        world = next(worlds)
        FAILPOINTS.arm({name: action})
        try:
            job(world, "replace", committer)
        except LockgateError:
            raised = True
        else:
            raised = False
        finally:
            FAILPOINTS.arm({})
        if not raised:
            assert world.attach("new-g1").phase() is JobPhase.COMMITTED, name
        world.recover()
        there = assert_all_or_nothing(world, "replace", f"{name} {action}", committer)
        assert there or raised, name
