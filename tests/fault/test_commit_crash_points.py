"""Crash before and after every storage call of a job, recover from another process, and look.

In one process: from the crash on, every further call of the dead run dies too. `test_commit_kill.py` does the
same with real processes and a real kill -9 for a sample.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_core.commit.phase import TERMINAL, JobPhase
from storage_core.errors import LockgateError
from storage_core.failpoints import FAILPOINTS
from tests.commit_world import World, crash_at
from tests.crash_harness import MODES, OLD, assert_all_or_nothing, job

pytestmark = pytest.mark.fault


@pytest.fixture
def worlds(tmp_path: Path) -> Iterator[Iterator[World]]:
    """Endless fresh copies of a destination with one published job."""
    first = World(tmp_path / "first", str(tmp_path / "first" / "dest"))
    first.run("old", OLD)

    def copies() -> Iterator[World]:
        for number in range(10_000):
            root = tmp_path / f"copy-{number}"
            shutil.copytree(first.root, root)
            yield World(root, str(root / "dest"))
            shutil.rmtree(root)

    yield copies()
    FAILPOINTS.observer = None


@pytest.mark.parametrize("mode", MODES)
def test_a_crash_at_any_storage_call_leaves_all_or_nothing(worlds: Iterator[World], mode: str) -> None:
    outcomes = []
    for number, world in enumerate(worlds):
        where = crash_at(number, lambda world=world: job(world, mode))  # type: ignore[misc]
        if where is None:
            assert_all_or_nothing(world, mode, "no crash")
            break
        held = set(OLD.items()) <= set(world.visible().items()) or mode == "replace"
        assert held, f"{where}: data that stood before are missing"
        results = world.recover()
        assert all(result.ended in TERMINAL for result in results), (where, results)
        outcomes.append(assert_all_or_nothing(world, mode, where))
    print(f"\n{mode}: {len(outcomes)} crash points, {sum(outcomes)} published, rest undone")
    assert len(outcomes) > 100
    # Undone up to the decision, published from it on: one switch, and never back.
    assert outcomes == sorted(outcomes)


@pytest.mark.parametrize("mode", MODES)
def test_a_reader_of_the_log_sees_whole_jobs_at_every_storage_call(
    worlds: Iterator[World], mode: str
) -> None:
    world = next(worlds)
    before = set(world.live().values())
    seen: list[frozenset[int]] = []

    def look(name: str) -> None:
        FAILPOINTS.observer = None
        seen.append(frozenset(world.live().values()))
        FAILPOINTS.observer = look

    FAILPOINTS.observer = look
    job(world, mode)
    FAILPOINTS.observer = None
    after = frozenset(world.live().values())
    assert set(seen) <= {frozenset(before), after}
    assert seen[0] == frozenset(before)
    assert seen[-1] == after


@pytest.mark.parametrize("mode", MODES)
def test_a_crash_of_the_recovery_is_recovered_too(worlds: Iterator[World], mode: str) -> None:
    drives = 0
    for first in range(0, 400, 17):
        for second in range(0, 400, 5):
            world = next(worlds)
            where = crash_at(first, lambda world=world: job(world, mode))  # type: ignore[misc]
            again = crash_at(second, world.recover)
            results = world.recover()
            assert all(result.ended in TERMINAL for result in results), (where, again, results)
            assert_all_or_nothing(world, mode, f"{where}, then {again}")
            drives += 1
            if again is None:
                break
        if where is None:
            break
    print(f"\n{mode}: {drives} pairs of crashes")
    assert drives > 50


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("action", ["lost", "refuse"])
def test_an_answer_that_is_lost_or_refused_once_leaves_all_or_nothing(
    worlds: Iterator[World], mode: str, action: str
) -> None:
    names: list[str] = []
    FAILPOINTS.observer = names.append
    job(next(worlds), mode)
    FAILPOINTS.observer = None
    side = ".after" if action == "lost" else ".before"
    for name in dict.fromkeys(name for name in names if name.endswith(side)):
        world = next(worlds)
        FAILPOINTS.arm({name: action})
        try:
            job(world, mode)
        except LockgateError:
            raised = True
        else:
            raised = False
        finally:
            FAILPOINTS.arm({})
        if not raised:
            assert world.attach("new-g1").phase() is JobPhase.COMMITTED, name
        world.recover()
        there = assert_all_or_nothing(world, mode, f"{name} {action}")
        assert there or raised, name
