"""Crash before and after every store and journal call where the journal is the arbiter, and recover.

A dead process leaves the state of the store and the journal at its death. So one run is observed, and the
state at each of its calls is recovered by another client with separate connections to both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lockgate.storage_core.commit.records.phase import TERMINAL, JobPhase
from lockgate.storage_core.errors import JournalUnavailableError, LockgateError, OutcomeUnknownError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.journal.process_journal import close_journals
from tests.conftest import Summarise
from tests.support.commit.arbitrated_destination import arbiter_world, found_by_another, left_by
from tests.support.commit.crash_harness import MODES, NEW, OLD, assert_all_or_nothing, job
from tests.support.commit.destination import World, crash_at, write
from tests.support.commit.snapshots import observed
from tests.support.s3.destination import S3World
from tests.support.soak import rounds, sample, soak_only

pytestmark = pytest.mark.fault

every_mode = pytest.mark.parametrize("mode", MODES)


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3World]:
    """Return a destination with one published job."""
    with arbiter_world(tmp_path, monkeypatch) as world:
        world.driver.run("old", OLD)
        yield world


def recovered(world: World, mode: str, where: str) -> bool:
    """Recover the remaining state, check it, and return whether the job is published."""
    assert mode == "replace" or OLD.items() <= world.visible().items(), f"{where}: older data are gone"
    results = world.recover()
    assert all(result.ended in TERMINAL for result in results), (where, results)
    return assert_all_or_nothing(world, mode, where)


def aborted_job(world: World) -> None:
    with world.open_job("new", mode="replace") as opened:
        write(opened, "task-0", {"day=1/c.csv": NEW["day=1/c.csv"]})
        opened.abort()


def test_no_conditional_request_is_sent_to_a_store_that_ignores_conditions(s3: S3World) -> None:
    requests = s3.seen_in(lambda: job(s3.driver, "replace"))
    assert len(requests) > 60
    assert not any(seen.conditional for seen in requests)


@pytest.mark.parametrize("mode", [soak_only("append"), "replace"])
def test_a_crash_at_any_store_or_journal_call_leaves_all_or_nothing(
    s3: S3World, mode: str, summarise: Summarise
) -> None:
    outcomes: list[bool] = []
    calls_of_the_journal = 0
    for left in left_by(s3, s3.driver, lambda: job(s3.driver, mode)):
        there = recovered(found_by_another(s3, left), mode, left.points[0])
        outcomes += [there] * len(left.points)
        calls_of_the_journal += sum(".journal-" in point for point in left.points)
    summarise(
        f"{mode}, the journal as arbiter: {len(outcomes)} crash points, {calls_of_the_journal} of them at "
        f"calls of the journal, {sum(outcomes)} published, rest undone"
    )
    assert calls_of_the_journal > 20
    # The job is undone before the decision and published after it: the state switches once.
    assert outcomes == sorted(outcomes)
    assert {False, True} == set(outcomes)


def test_the_claim_in_the_journal_is_the_decision_with_or_without_its_copy(s3: S3World) -> None:
    left = left_by(s3, s3.driver, lambda: job(s3.driver, "replace"))
    claimed = [one for one in left if "decide.journal-write.after" in one.points]
    assert len(claimed) == 1
    assert not any(key.endswith("new-g1/COMMIT_STARTED") for key in claimed[0].store.objects)
    assert recovered(found_by_another(s3, claimed[0]), "replace", "claimed, not copied")


@pytest.mark.soak
def test_a_crash_of_an_abort_leaves_nothing_of_the_job(s3: S3World, summarise: Summarise) -> None:
    points = 0
    for left in left_by(s3, s3.driver, lambda: aborted_job(s3.driver)):
        assert not recovered(found_by_another(s3, left), "replace", left.points[0])
        points += len(left.points)
    summarise(f"abort, the journal as arbiter: {points} crash points")
    assert s3.driver.attach("new-g1").phase() is JobPhase.FAILED


@every_mode
@pytest.mark.soak
def test_a_crash_during_recovery_is_recovered(s3: S3World, mode: str, summarise: Summarise) -> None:
    pairs = 0
    for first in left_by(s3, s3.driver, lambda: job(s3.driver, mode))[:: rounds(40, 6)]:
        world = found_by_another(s3, first)
        for second in left_by(s3, world, world.recover)[::3]:
            where = f"{first.points[0]}, then {second.points[0]}"
            recovered(found_by_another(s3, second), mode, where)
            pairs += len(second.points)
    summarise(f"{mode}, the journal as arbiter: {pairs} pairs of crashes")
    assert pairs > rounds(12, 100)


@pytest.mark.soak
def test_a_run_that_really_dies_leaves_the_same_state_as_a_snapshot(s3: S3World) -> None:
    (before,) = left_by(s3, s3.driver, lambda: None)
    outcomes = []
    for number in range(0, 1000, 37):
        world = found_by_another(s3, before)
        where = crash_at(number, lambda world=world: job(world, "replace"))  # type: ignore[misc]
        if where is None:
            break
        close_journals()
        outcomes.append(recovered(world, "replace", where))
    assert outcomes == sorted(outcomes)
    assert {False, True} == set(outcomes)


Strike = Callable[[str], Exception]


def lost(point: str) -> Exception:
    return OutcomeUnknownError(f"{point}: the answer was lost on purpose")


def down(point: str) -> Exception:
    return JournalUnavailableError(f"{point}: the journal is down on purpose")


@pytest.mark.parametrize(
    ("strike", "at", "times"),
    [(lost, "write.after", 1), (lost, "write.after", 4), (down, ".before", 1), (down, ".before", 1000)],
    ids=["an answer is lost", "an answer is lost for good", "down once", "down from here on"],
)
@pytest.mark.soak
def test_a_journal_that_fails_at_any_call_leaves_all_or_nothing(
    s3: S3World, strike: Strike, at: str, times: int, summarise: Summarise
) -> None:
    (before,) = left_by(s3, s3.driver, lambda: None)
    names: list[str] = []
    with observed(names.append):
        job(found_by_another(s3, before), "replace")
    published = raised = 0
    points = [name for name in dict.fromkeys(names) if ".journal-" in name and name.endswith(at)]
    for point in sample(points, every=3, offset=times):
        world = found_by_another(s3, before)
        failed = _fails(world, point, strike, times)
        where = f"{point}, {strike.__name__} {times}"
        (left,) = left_by(s3, world, lambda: None)
        there = recovered(found_by_another(s3, left), "replace", where)
        assert there or failed, where
        published += there
        raised += failed
    summarise(
        f"{strike.__name__} {times}: at {len(points)} calls, {published} published, {raised} runs raised"
    )
    assert len(points) > 5
    assert not (strike is lost and times == 1 and raised), "the same request id asks again"


def _fails(world: World, point: str, strike: Strike, times: int) -> bool:
    """Run the job while the journal fails this often from a failpoint on; return whether the job raised."""
    failures, side = 0, point[point.rindex(".") :]

    def observe(name: str) -> None:
        nonlocal failures
        is_here = name == point or (failures and ".journal-" in name and name.endswith(side))
        if is_here and failures < times:
            failures += 1
            raise strike(name)

    FAILPOINTS.observer = observe
    try:
        job(world, "replace")
    except LockgateError:
        return True
    finally:
        FAILPOINTS.observer = None
    assert world.attach("new-g1").phase() is JobPhase.COMMITTED, point
    return False
