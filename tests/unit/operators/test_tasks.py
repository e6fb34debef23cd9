"""Tests of the operator for task commits, mapped and unmapped, with a worker thread and a memory broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from lockgate.operators.dag_run.job_handle import handle_of
from lockgate.operators.jobs import JobCommitOperator
from lockgate.operators.tasks import TaskCommitOperator
from lockgate.storage_core.commit.job_summary import list_jobs
from lockgate.storage_core.commit.leases.job_lease import JobLeaseState
from lockgate.storage_core.commit.publish.shard_completion import ShardReport
from lockgate.workers.dispatch import complete_by_workers
from tests.support.airflow.task_run import TaskRun
from tests.support.workers.celery_worker import StagedJob, memory_broker, worker_thread


@pytest.fixture(scope="module", autouse=True)
def worker() -> Iterator[None]:
    with memory_broker(), worker_thread():
        yield


def commit_tasks(staged: StagedJob, task_ids: list[str] | None = None) -> dict[str, Any]:
    operator = TaskCommitOperator(task_id="tasks", job=handle_of(staged.job), task_ids=task_ids)
    return operator.execute(TaskRun(task_id="tasks").context())


def test_the_unmapped_operator_commits_every_task_and_sums_the_results(staged: StagedJob) -> None:
    added = commit_tasks(staged)

    assert (added["tasks"], added["files"], added["rows"]) == (6, 6, 60)
    assert added["bytes"] == sum(path.stat().st_size for path in staged.staging.rglob("*.parquet"))
    assert staged.listed() == []


def test_mapped_operators_commit_their_chunks_and_a_retry_commits_nothing_twice(staged: StagedJob) -> None:
    first, second = staged.task_ids[:4], staged.task_ids[4:]

    assert commit_tasks(staged, first)["rows"] == 40
    assert commit_tasks(staged, first)["rows"] == 40
    assert commit_tasks(staged, second)["rows"] == 20

    assert staged.committed_attempts() == staged.task_ids
    staged.attach().commit()
    assert staged.visible_rows() == staged.all_rows


def test_the_job_is_suspended_after_the_step_also_when_it_fails(staged: StagedJob) -> None:
    next(staged.staging.rglob("*.parquet")).write_bytes(b"changed")

    with pytest.raises(AirflowFailException, match="is not a complete"):
        commit_tasks(staged)

    [job] = list_jobs(staged.destination)
    assert job.lease is JobLeaseState.SUSPENDED


def test_workers_complete_the_uploads_if_the_commit_is_configured_so(staged: StagedJob) -> None:
    commit_tasks(staged)
    commit = JobCommitOperator(task_id="commit", job=handle_of(staged.job), complete_by="workers")

    receipt = commit.execute(TaskRun(task_id="commit").context())

    assert receipt["rows"] == 60
    assert staged.visible_rows() == staged.all_rows
    assert staged.open_uploads() == []


@pytest.mark.parametrize(
    ("broker", "most_files", "by_workers"), [(True, 0, True), (True, 5_000, False), (False, 0, False)]
)
def test_workers_complete_a_large_job_where_a_broker_is_configured(
    staged: StagedJob, monkeypatch: pytest.MonkeyPatch, *, broker: bool, most_files: int, by_workers: bool
) -> None:
    sent: list[int] = []

    def completer(*job: Any, **options: Any) -> Iterator[ShardReport]:
        sent.append(job[3])
        return complete_by_workers(*job, **options)

    monkeypatch.setattr("lockgate.workers.dispatch.complete_by_workers", completer)
    monkeypatch.setenv("LOCKGATE_COMMIT_SHARD_FILES", str(most_files))
    commit_tasks(staged)
    if not broker:
        monkeypatch.delenv("LOCKGATE_BROKER_URL")

    receipt = JobCommitOperator(task_id="commit", job=handle_of(staged.job)).execute(
        TaskRun(task_id="commit").context()
    )

    assert (receipt["rows"], bool(sent)) == (60, by_workers)
    assert staged.open_uploads() == []
