"""Tests of dispatch over Celery's in-memory broker with one worker thread: results, errors, windows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lockgate.storage_core.errors import (
    InvalidInputError,
    LockgateError,
    OutcomeUnknownError,
)
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.workers import gather
from lockgate.workers.celery_app import app
from lockgate.workers.dispatch import commit_tasks, complete_by_workers
from tests.support.workers.celery_worker import StagedJob, memory_broker, worker_thread


@pytest.fixture(scope="module", autouse=True)
def worker() -> Iterator[None]:
    with memory_broker(), worker_thread():
        yield


def test_workers_commit_the_tasks_and_their_rows_are_returned_in_order(staged: StagedJob) -> None:
    reported: list[tuple[str, int, int]] = []

    rows = commit_tasks(*staged.ids, staged.task_ids, progress=lambda *step: reported.append(step))

    assert [row["task_id"] for row in rows] == staged.task_ids
    assert sum(row["rows"] for row in rows) == 60
    assert reported == [("tasks", done, 6) for done in range(1, 7)]
    assert staged.listed() == []
    staged.attach().commit()
    assert staged.visible_rows() == staged.all_rows


def test_more_tasks_than_a_window_are_sent_one_window_at_a_time(
    staged: StagedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "WINDOW", 2)

    rows = commit_tasks(*staged.ids, staged.task_ids)

    assert [row["task_id"] for row in rows] == staged.task_ids


def test_the_error_of_a_task_is_raised_with_its_type_and_message(staged: StagedJob) -> None:
    (staged.staging / "month=3" / "part-00002.parquet").unlink()

    with pytest.raises(InvalidInputError, match=r"part-00002\.parquet cannot be opened"):
        commit_tasks(*staged.ids, staged.task_ids)


def every_error() -> list[type[LockgateError]]:
    found, todo = [], [LockgateError]
    while todo:
        kind = todo.pop()
        found.append(kind)
        todo += kind.__subclasses__()
    return found


@pytest.mark.parametrize("kind", every_error())
def test_every_lockgate_error_survives_the_result_backend(kind: type[LockgateError]) -> None:
    app.backend.mark_as_failure("an-id", kind("what, where, next step"))

    outcome = gather._outcome("work", app.backend.get_task_meta("an-id"))

    assert type(outcome) is kind
    assert str(outcome) == "what, where, next step"


def test_a_foreign_error_is_an_unknown_outcome() -> None:
    app.backend.mark_as_failure("another-id", MemoryError("no room"))

    outcome = gather._outcome("work", app.backend.get_task_meta("another-id"))

    assert type(outcome) is OutcomeUnknownError
    assert "MemoryError: no room; its effect is not known" in str(outcome)


def test_the_worker_retries_a_transient_refusal_of_the_store(
    staged: StagedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celery.app.autoretry.get_exponential_backoff_interval", lambda **_: 0)
    FAILPOINTS.arm({"task-write.adopt.before": "refuse"})

    rows = commit_tasks(*staged.ids, staged.task_ids[:1])

    assert rows[0]["rows"] == 10
    assert staged.committed_attempts() == staged.task_ids[:1]


def test_a_decided_plan_is_completed_by_workers(staged: StagedJob) -> None:
    commit_tasks(*staged.ids, staged.task_ids)
    receipt = staged.attach().commit(complete=complete_by_workers)

    assert (receipt.files, receipt.rows) == (6, 60)
    assert staged.visible_rows() == staged.all_rows
