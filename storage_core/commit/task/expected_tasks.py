"""The frozen task list of a job attempt, which a job commit requires; and jobs without any task.

Source: commit protocol, "Writing and task commit".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from lockgate.storage_core.commit.records.job_folder import JobFolder, claim
from lockgate.storage_core.commit.records.task import ExpectedTask, ExpectedTasks
from lockgate.storage_core.errors import ConflictError, NoTasksError
from lockgate.storage_core.ids import JobAttemptId, TaskId, check_id
from lockgate.storage_core.stamp import Stamp


def freeze_tasks(
    folder: JobFolder, job_attempt: JobAttemptId, tasks: Sequence[ExpectedTask], staging: str | None
) -> ExpectedTasks:
    """Freeze the task list of a job attempt; see `Job.expect`."""
    if len({task.task_id for task in tasks}) != len(tasks):
        raise ConflictError(f"job {folder.job_id}: a task is named twice in the list of expected tasks")
    record = ExpectedTasks(
        job_id=folder.job_id,
        job_attempt=job_attempt,
        stamp=Stamp(0, 1 + len(folder.listed_attempts() - {job_attempt})),
        staging=staging,
        tasks=tuple(tasks),
    )
    key = folder.key(f"attempts/{check_id('job attempt', job_attempt)}.json")
    stored = claim(folder.store, key, record)
    if (stored.tasks, stored.staging) != (record.tasks, record.staging):
        raise ConflictError(
            f"job {folder.job_id}: job attempt {job_attempt} has another task list already; "
            "a new run of the driver needs a new job attempt"
        )
    return stored


def expected_digest(folder: JobFolder, job_attempt: JobAttemptId, task: TaskId) -> str:
    """Return the digest of a task's input in the frozen list of a job attempt; "" without one."""
    expected = folder.expected(job_attempt)
    tasks = expected.tasks if expected is not None else ()
    return next((known.input_digest for known in tasks if known.task_id == task), "")


def refuse_empty(folder: JobFolder) -> NoReturn:
    """Refuse to commit a job without any task: its driver may have died before its first one.

    Raises:
        NoTasksError: Always; nothing was changed.
    """
    raise NoTasksError(
        f"job {folder.job_id} at {folder.store.url}: no task has committed and no task list is frozen, so "
        "its driver may have died before it wrote anything; nothing was changed; run the driver again, abort "
        "the job, or publish it without data: allow_empty=True (`lockgate jobs commit --allow-empty`)"
    )
