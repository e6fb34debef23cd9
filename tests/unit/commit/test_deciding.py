"""The job commit, call by call: decisions, lost or unusual answers, and the state after a failure."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from lockgate.storage_core.commit import job_commit
from lockgate.storage_core.commit.publish.commit_context import read_file_results
from lockgate.storage_core.commit.records.layout import SUCCESS
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.errors import (
    FencedError,
    InvalidInputError,
    JobFailedError,
    MalformedRecordError,
    OutcomeUnknownError,
    StoreUnavailableError,
    TurnBusyError,
)
from lockgate.storage_core.failpoints import FAILPOINTS
from tests.support.commit.destination import World, plain, write
from tests.support.fake_s3 import Fault, faults
from tests.support.s3.destination import S3World, s3_world

OLD = {"old.csv": b"0"}
NEW = {f"{number}.csv": b"x" * number for number in range(1, 6)}
NO_SUCH_UPLOAD = Fault("404", status=404, code="NoSuchUpload")


@pytest.fixture(autouse=True)
def unobserved() -> Iterator[None]:
    yield
    FAILPOINTS.observer = None
    FAILPOINTS.arm({})


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3World]:
    """Return a destination in the strict fake store with one published job."""
    with s3_world(tmp_path, monkeypatch) as world:
        world.driver.run("old", OLD)
        world.fake.faults.clear()
        yield world


def at(point: str, act: Callable[[], object]) -> None:
    """Call a function once, at a failpoint."""

    def observe(name: str) -> None:
        if name == point:
            FAILPOINTS.observer = None
            act()

    FAILPOINTS.observer = observe


# The lease.


def test_a_commit_with_a_freshly_renewed_lease_starts_without_another_renewal(world: World) -> None:
    job = world.open_job("sales")
    write(job, "t", NEW)
    passed: list[str] = []
    FAILPOINTS.observer = passed.append
    job.commit()
    before = passed[: passed.index("decide.create.before")]
    assert "lease.put.before" not in before


def test_an_old_lease_is_renewed_before_the_commit_starts(world: World) -> None:
    job = world.open_job("sales")
    write(job, "t", NEW)
    world.clock.now += world.settings.commit_window_s
    passed: list[str] = []
    FAILPOINTS.observer = passed.append
    job.commit()
    assert "lease.put.after" in passed[: passed.index("decide.create.before")]
    assert world.visible() == NEW


@pytest.mark.parametrize("how", ["refused", "lost to another driver"])
def test_no_commit_starts_with_a_stale_lease_that_cannot_be_renewed(world: World, how: str) -> None:
    world.run("old", OLD)
    job = world.open_job("sales", mode="replace")
    write(job, "t", NEW)
    world.clock.now += world.settings.commit_window_s
    if how == "refused":
        FAILPOINTS.arm({"lease.put.before": "refuse"})
    else:
        at("plan.create.before", lambda: world.open_job("sales", mode="replace").suspend())
    with pytest.raises((StoreUnavailableError, FencedError)):
        job.commit()
    assert job._folder.decision() is None
    assert job.phase() is JobPhase.OPEN
    assert world.visible() == OLD
    assert len(world.open_uploads()) == len(NEW)
    job.close()


# Concurrent commits.


def test_one_of_two_concurrent_commits_decides_and_the_other_changes_nothing(world: World) -> None:
    job = world.open_job("sales")
    write(job, "t", NEW)
    standing: dict[str, str] = {}

    def rival() -> None:
        world.attach(job.job_id).commit()
        standing.update((info.key, info.version) for page in world.store.pages() for info in page)

    at("decide.create.before", rival)
    try:
        job.commit()
    except FencedError:
        assert job.receipt is not None
    job.close()
    after = {info.key: info.version for page in world.store.pages() for info in page}
    assert {key for key in after if standing.get(key) != after[key]} <= {
        job._folder.key("lease.json"),
        job._folder.key("report.json"),
    }
    assert job.phase() is JobPhase.COMMITTED
    assert job._folder.ended()[1] is None
    assert world.visible() == NEW


# Lost answers.


@pytest.mark.parametrize(
    "point",
    [
        "decide.create.after",
        "complete.complete.after",
        "outcome.create.after",
        "success.create.after",
        "end.create.after",
    ],
)
def test_a_lost_answer_to_a_marker_or_a_completion_resolves_to_success(world: World, point: str) -> None:
    FAILPOINTS.arm({point: "lost"})
    job = world.run("sales", NEW)
    assert job.phase() is JobPhase.COMMITTED
    assert world.visible() == NEW
    assert json.loads(world.store.get(SUCCESS))["job_id"] == job.job_id


def test_a_lost_answer_to_the_replacement_of_a_success_file_resolves_to_success(world: World) -> None:
    world.run("old", OLD)
    FAILPOINTS.arm({"success.put.after": "lost"})
    job = world.run("sales", NEW)
    assert json.loads(world.store.get(SUCCESS))["job_id"] == job.job_id


ANSWERS = [
    faults.ERROR_IN_200,
    faults.ERROR_IN_200.after_the_effect(),
    NO_SUCH_UPLOAD,
    NO_SUCH_UPLOAD.after_the_effect(),
    faults.PRECONDITION_FAILED,
    faults.PRECONDITION_FAILED.after_the_effect(),
    faults.TIMED_OUT,
    faults.TIMED_OUT.after_the_effect(),
    faults.CLOSED,
    faults.CLOSED.after_the_effect(),
]


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: answer.name)
def test_the_outcome_of_a_completion_is_read_from_the_object_whatever_the_answer(
    s3: S3World, answer: Fault
) -> None:
    s3.fake.faults.at(answer, operation="CompleteMultipartUpload", nth=2, times=2)
    job = s3.driver.run("new", NEW, mode="replace")
    assert job.phase() is JobPhase.COMMITTED
    assert s3.other.visible() == NEW
    assert s3.other.live() == s3.other.keys()
    assert s3.other.open_uploads() == []


def test_a_conflict_that_ends_an_upload_reverts_the_job(s3: S3World) -> None:
    # On AWS a 409 means that the upload is gone and must be repeated. Its data are not available here.
    s3.fake.faults.at(faults.CONFLICT, operation="CompleteMultipartUpload", nth=2)
    with pytest.raises(JobFailedError, match="1 pending files were lost for good"):
        s3.driver.run("new", NEW, mode="replace")
    assert s3.other.attach("new-g1").phase() is JobPhase.FAILED
    assert s3.other.visible() == OLD
    assert s3.other.live() == s3.other.keys()
    assert s3.other.open_uploads() == []


def test_a_job_is_never_told_the_unknown_outcome_of_another_job_as_its_own(s3: S3World) -> None:
    first, second = s3.driver.open_job("first"), s3.other.open_job("second")
    write(first, "t", {"1.csv": b"1"})
    write(second, "t", {"2.csv": b"2"})
    s3.fake.faults.at(faults.TIMED_OUT, operation="CompleteMultipartUpload", times=100)
    with pytest.raises(OutcomeUnknownError):
        first.commit()
    with pytest.raises(TurnBusyError, match=f"job {first.job_id} has turn 2 .* nothing of this job was"):
        second.commit()
    assert second.phase() is JobPhase.OPEN
    s3.fake.faults.clear()
    second.commit()
    assert s3.other.visible() == {**OLD, "1.csv": b"1", "2.csv": b"2"}


# Definite failures.


def test_a_pending_set_that_changes_after_it_was_chosen_publishes_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_commit, "KEPT_BYTES", 0)  # as if it were long: it is read again for the plan
    world.run("old", OLD)
    job = world.open_job("sales")
    write(job, "t", NEW)
    (key,) = (info.key for page in world.store.pages() for info in page if info.key.endswith(".pendingset"))
    changed = world.store.get(key) + b"\n"
    at("plan.get.before", lambda: world.store.put(key, changed))
    with pytest.raises(MalformedRecordError, match="it changed after it was chosen"):
        job.commit()
    assert world.visible() == OLD


def test_a_commit_that_fails_while_its_plan_is_written_leaves_nothing_of_the_plan(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise InvalidInputError("refused on purpose")

    monkeypatch.setattr(job_commit, "take_turn", refuse)
    job = world.open_job("sales")
    write(job, "t", NEW)
    written: list[str] = []
    cleaned = threading.Event()

    def be_late(point: str) -> None:
        if point == "plan.create.before":
            cleaned.wait(0.5)  # an abort that does not wait for this has cleaned up by then
            written.append(point)
        elif point == "clean-up.delete.after":
            cleaned.set()

    FAILPOINTS.observer = be_late
    with pytest.raises(InvalidInputError, match="refused on purpose"):
        job.commit()
    FAILPOINTS.observer = None
    assert written
    assert job.phase() is JobPhase.FAILED
    assert [info.key for page in world.store.pages() for info in page if "/plan/" in info.key] == []


@pytest.mark.parametrize("lost", [0, 2, 4])
def test_a_definite_failure_at_a_file_reverts_the_files_before_it_and_aborts_those_after_it(
    world: World, lost: int
) -> None:
    world.options = {"parallelism": 1}
    world.run("old", OLD)
    job = world.open_job("sales", mode="replace")
    write(job, "t", NEW)
    gone = next(job.pending_sets()).files[lost].upload
    at("decide.create.after", lambda: world.store.abort_upload(gone.key, gone.upload_id))
    with pytest.raises(JobFailedError, match=f"the first is {gone.key}"):
        job.commit()
    assert job.phase() is JobPhase.FAILED
    assert world.visible() == OLD
    assert world.live() == world.keys()
    assert world.open_uploads() == []
    results = {file.key: file.result for file in read_file_results(job._folder)}
    assert results.pop(gone.key) == "lost"
    assert set(results.values()) <= {"reverted", "aborted"}
    assert len(results) == len(NEW) - 1


@pytest.mark.parametrize("verb", ["abort", "delete"])
def test_a_failed_revert_stops_deleting_and_is_finished_by_recovery(world: World, verb: str) -> None:
    world.run("old", OLD)
    job = world.open_job("sales", mode="replace")
    write(job, "t", NEW)
    gone = next(job.pending_sets()).files[0].upload

    def refuse(name: str) -> None:
        if name == "decide.create.after":
            FAILPOINTS.observer = None
            world.store.abort_upload(gone.key, gone.upload_id)
            FAILPOINTS.observer = refuse
        if name == f"revert.{verb}.before":
            raise StoreUnavailableError(f"{name} was refused")

    FAILPOINTS.observer = refuse
    with pytest.raises((StoreUnavailableError, OutcomeUnknownError)):
        job.commit()
    FAILPOINTS.observer = None
    assert job.phase() is JobPhase.REVERTING
    assert world.visible().items() >= OLD.items()
    assert world.live() == {key: size for key, size in world.keys().items() if plain(key) in OLD}
    (found,) = [result for result in world.recover() if result.job_id == job.job_id]
    assert found.ended is JobPhase.FAILED
    assert world.visible() == OLD
    assert world.open_uploads() == []


# `_SUCCESS` and the clean-up.


def test_the_success_file_describes_the_older_job_until_the_new_one_has_published(world: World) -> None:
    world.run("old", OLD)
    read_job_ids: list[str] = []
    at("success.head.before", lambda: read_job_ids.append(json.loads(world.store.get(SUCCESS))["job_id"]))
    job = world.run("new", NEW, mode="replace")
    assert read_job_ids == ["old-g1"]
    assert json.loads(world.store.get(SUCCESS))["job_id"] == job.job_id


@pytest.mark.parametrize("verb", ["list", "delete_many", "delete"])
def test_a_failed_clean_up_does_not_affect_a_published_job_and_is_done_later(world: World, verb: str) -> None:
    def refuse(name: str) -> None:
        if name == f"clean-up.{verb}.before":
            raise StoreUnavailableError(f"{name} was refused")

    FAILPOINTS.observer = refuse
    job = world.run("sales", NEW)
    FAILPOINTS.observer = None
    assert job.phase() is JobPhase.COMMITTED
    assert job.receipt is not None
    assert world.visible() == NEW
    assert len(list(world.store.pages(job._folder.key("lease.json")))) == 1
    (found,) = world.recover()
    assert found.ended is JobPhase.COMMITTED
    assert list(world.store.pages(job._folder.key("lease.json"))) == []
    assert list(world.store.pages(job._folder.key("tasks/"))) == []
    assert world.visible() == NEW


def test_any_process_can_repeat_a_clean_up(world: World) -> None:
    job = world.run("sales", NEW)
    standing = {info.key: info.version for page in world.store.pages() for info in page}
    for _ in range(2):
        assert world.attach(job.job_id).finish() is JobPhase.COMMITTED
        assert world.recover() == []
    assert {info.key: info.version for page in world.store.pages() for info in page} == standing
