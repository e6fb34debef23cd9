"""Crash before and after every request that a job sends to S3, and fail every request in every way S3 can.

A dead process leaves the state of the store at its death. So one run is observed, and the state before and
after each of its requests is recovered by another process with separate S3 clients; equal states are
recovered once. A test with a sample shows that a run that really dies leaves the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

import pytest

from lockgate.storage_core.commit.records.phase import TERMINAL, JobPhase
from lockgate.storage_core.errors import LockgateError
from tests.conftest import Summarise
from tests.support.commit.crash_harness import MODES, OLD, assert_all_or_nothing, job, streamed_job
from tests.support.commit.destination import Crash
from tests.support.fake_s3 import Fault, Moment, Options, Seen, faults
from tests.support.s3.destination import S3World, s3_world
from tests.support.soak import rounds, sample

pytestmark = pytest.mark.fault

REPEATED: Final = (
    Options(repeated_completion="succeeds"),
    Options(repeated_completion="no such upload"),
)
READS: Final = frozenset({"GetObject", "HeadObject", "ListObjectsV2", "ListMultipartUploads"})

Strikes = Callable[[Seen], bool]


def _anything(seen: Seen) -> bool:
    return True


def _changes(seen: Seen) -> bool:
    return seen.operation not in READS


def _may_conflict(seen: Seen) -> bool:
    return seen.conditional or seen.operation == "CompleteMultipartUpload"


def _fails_inside(seen: Seen) -> bool:
    return seen.operation in {"CompleteMultipartUpload", "DeleteObjects"}


FAULTS: Final[Sequence[tuple[Fault, Strikes]]] = (
    (faults.CLOSED, _anything),
    (faults.SLOW_DOWN, _changes),
    (faults.TIMED_OUT.after_the_effect(), _changes),
    (faults.ERROR_IN_200, _fails_inside),
    (faults.ERROR_IN_200.after_the_effect(), _fails_inside),
    (faults.CONFLICT, _may_conflict),
    # A repeated request collides with its own first try. S3 never answers 412 without a cause.
    (faults.PRECONDITION_FAILED.after_the_effect(), lambda seen: seen.conditional),
)
"""Every way in which a request can fail, with the requests that can; a 500 leaves the outcome unknown."""


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3World]:
    """Return a destination with one published job. Requests have an order, so a number names one."""
    with s3_world(tmp_path, monkeypatch, parallelism=1) as world:
        world.driver.run("old", OLD)
        yield world


def left_by(moments: Sequence[Moment]) -> list[tuple[Moment, int]]:
    """Return the states that crashes leave, each with the number of crash points that leave it."""
    groups = (list(group) for _, group in groupby(moments, key=lambda moment: moment.state))
    return [(group[0], len(group)) for group in groups]


def recovered(s3: S3World, mode: str, where: str, committer: str = "magic") -> bool:
    """Recover the remaining state from another client, check it, and return whether the job is published."""
    held = set(OLD.items()) <= set(s3.other.visible().items()) or mode == "replace"
    assert held, f"{where}: data that stood before are missing"
    results = s3.other.recover()
    assert all(result.ended in TERMINAL for result in results), (where, results)
    return assert_all_or_nothing(s3.other, mode, where, committer)


def recovered_at(s3: S3World, mode: str, moments: Sequence[Moment]) -> list[bool]:
    """Recover what a crash at each moment leaves; return whether the job is published then."""
    outcomes: list[bool] = []
    for moment, points in left_by(moments):
        s3.go_back_to(moment)
        outcomes += [recovered(s3, mode, str(moment))] * points
    return outcomes


@pytest.mark.parametrize(("mode", "options"), list(zip(MODES, REPEATED, strict=True)), ids=MODES)
def test_a_crash_before_or_after_any_request_leaves_all_or_nothing(
    s3: S3World, mode: str, options: Options, summarise: Summarise
) -> None:
    moments = s3.moments_of(lambda: job(s3.driver, mode))
    s3.fake.behave(options)
    outcomes = recovered_at(s3, mode, moments)
    summarise(
        f"{mode}, a repeated completion: {options.repeated_completion}: {len(outcomes)} crash points at "
        f"{len(moments) // 2} requests, {sum(outcomes)} published, rest undone"
    )
    assert len(outcomes) == len(moments) > 100
    # The job is undone before the decision and published after it: the state switches once.
    assert outcomes == sorted(outcomes)
    assert {False, True} == set(outcomes)


@pytest.mark.parametrize(("mode", "options"), list(zip(MODES, REPEATED, strict=True)), ids=MODES)
def test_a_crash_of_a_job_that_spark_streamed_leaves_all_or_nothing(
    s3: S3World, mode: str, options: Options, monkeypatch: pytest.MonkeyPatch, summarise: Summarise
) -> None:
    """From Spark's first upload to the end of the commit; two tasks adopt the three files, in order."""
    for name, value in (("FILES_OF_A_TASK", 2), ("TASKS_AT_ONCE", 1)):
        monkeypatch.setattr(f"lockgate.storage_core.spark.adopted_files.{name}", value)
    moments = s3.moments_of(lambda: streamed_job(s3.driver, mode))
    s3.fake.behave(options)
    outcomes = recovered_at(s3, mode, moments)
    summarise(f"{mode}, by Spark: {len(outcomes)} crash points, {sum(outcomes)} published, rest undone")
    assert outcomes == sorted(outcomes)
    assert {False, True} == set(outcomes)


@pytest.mark.parametrize("options", REPEATED, ids=lambda options: options.repeated_completion)
@pytest.mark.parametrize("committer", ["partitioned", "direct"])
@pytest.mark.soak
def test_a_crash_under_another_committer_leaves_all_or_nothing(
    s3: S3World, committer: str, options: Options, summarise: Summarise
) -> None:
    moments = s3.moments_of(lambda: job(s3.driver, "replace", committer))
    s3.fake.behave(options)
    outcomes: list[bool] = []
    for moment, points in left_by(moments):
        s3.go_back_to(moment)
        outcomes += [recovered(s3, "replace", str(moment), committer)] * points
    summarise(
        f"{committer}, replace, a repeated completion: {options.repeated_completion}: "
        f"{len(outcomes)} crash points, {sum(outcomes)} published, rest undone"
    )
    assert outcomes == sorted(outcomes)
    assert {False, True} == set(outcomes)


@pytest.mark.parametrize("options", REPEATED, ids=lambda options: options.repeated_completion)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.soak
def test_a_crash_before_or_after_any_request_of_the_recovery_is_recovered(
    s3: S3World, mode: str, options: Options, summarise: Summarise
) -> None:
    s3.fake.behave(options)
    first = left_by(s3.moments_of(lambda: job(s3.driver, mode)))
    pairs = 0
    for moment, _ in first[:: rounds(9, 3)]:
        s3.go_back_to(moment)
        again = s3.moments_of(s3.driver.recover)
        for second, points in left_by(again):
            s3.go_back_to(second)
            recovered(s3, mode, f"{moment}, then {second}")
            pairs += points
    summarise(f"{mode}, a repeated completion: {options.repeated_completion}: {pairs} pairs of crashes")
    assert pairs > rounds(40, 100)


@pytest.mark.parametrize("mode", ["replace"])
def test_a_run_that_dies_at_a_request_leaves_all_or_nothing(s3: S3World, mode: str) -> None:
    before = s3.fake.snapshot()
    requests = len(s3.seen_in(lambda: job(s3.driver, mode)))
    outcomes = []
    for number in range(1, requests + 1, rounds(14, 7)):
        for fault in (faults.crash(Crash), faults.crash(Crash).after_the_effect()):
            s3.fake.restore(before)
            s3.fake.forget()
            s3.fake.faults.at(fault, request=number)
            with pytest.raises(Crash):
                job(s3.driver, mode)
            s3.fake.revive()
            outcomes.append(recovered(s3, mode, f"{fault.name} at request {number}"))
    assert {False, True} == set(outcomes)
    assert outcomes == sorted(outcomes)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("fault", "can_strike"), FAULTS, ids=[fault.name for fault, _ in FAULTS])
@pytest.mark.soak
def test_a_request_that_fails_once_in_any_way_of_s3_leaves_all_or_nothing(
    s3: S3World, mode: str, fault: Fault, can_strike: Strikes, summarise: Summarise
) -> None:
    before = s3.fake.snapshot()
    requests = s3.seen_in(lambda: job(s3.driver, mode))
    # Both modes send the same requests before the plan and when they only read, so one mode is enough.
    planned = next(seen.number for seen in requests if "/plan/" in seen.key)
    targets: Sequence[Seen] = [
        seen
        for seen in requests
        if can_strike(seen) and (mode == "append" or (_changes(seen) and seen.number >= planned))
    ]
    targets = sample(targets, every=8, offset=[kind for kind, _ in FAULTS].index(fault))
    published = raised = 0
    for seen in targets:
        s3.fake.restore(before)
        s3.fake.forget()
        s3.fake.faults.at(fault, request=seen.number)
        where = f"{fault.name} at {seen}"
        failed = _fails(s3, mode, where)
        there = recovered(s3, mode, where)
        assert there or failed, where
        published += there
        raised += failed
    summarise(
        f"{mode}, {fault.name}: at {len(targets)} requests, {published} published, {raised} runs raised"
    )
    assert targets


def _fails(s3: S3World, mode: str, where: str) -> bool:
    """Run the job and return whether it raised. If it did not, it must be committed."""
    try:
        job(s3.driver, mode)
    except LockgateError:
        return True
    assert s3.other.attach("new-g1").phase() is JobPhase.COMMITTED, where
    return False
