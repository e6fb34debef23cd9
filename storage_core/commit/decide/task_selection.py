"""Which attempt of each task counts.

Source: commit protocol, "Writing and task commit" (job attempts, speculation) and step 1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from lockgate.storage_core.commit.records.job import ExpectedTasks
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.errors import ConflictError
from lockgate.storage_core.ids import AttemptId, JobAttemptId, TaskId
from lockgate.storage_core.stamp import Stamp


@dataclass(frozen=True)
class Chosen:
    """The attempt of a task that counts, and the digest of its pending set."""

    task_id: TaskId
    attempt_id: AttemptId
    digest: str
    stamp: Stamp


def choose(
    folder: JobFolder, job_attempt: JobAttemptId, winners: Mapping[TaskId, AttemptId] | None = None
) -> list[Chosen]:
    """Choose one attempt of every task, in order of the tasks' ids.

    The tasks are those of one job attempt. Another job attempt's are taken over only where the expected
    list gives a task an input digest, and it is equal.

    Args:
        folder: Of the job.
        job_attempt: Whose tasks the plan takes.
        winners: The driver's own choice (Spark); otherwise the newest stamp of each task counts.

    Raises:
        MalformedRecordError: A pending set is not what it should be.
        ConflictError: A task that is expected, or that the driver names, has no pending set; or pending sets
            name their input, and nobody has said which input counts.
    """
    expected = folder.expected(job_attempt)
    digests = {task.task_id: task.input_digest for task in expected.tasks} if expected else {}
    aborted = folder.aborted_attempts()
    chosen: dict[TaskId, Chosen] = {}
    for found, digest in folder.pending_sets():
        task, attempt = found.task_id, found.attempt_id
        same_input = bool(found.input_digest) and digests.get(task) == found.input_digest
        if found.job_attempt != job_attempt and not same_input:
            continue
        if found.input_digest and digests.get(task) and not same_input:
            continue  # of other input than the list asks for; Spark's tasks name the attempt that won there
        if (task, attempt) in aborted or (expected is not None and task not in digests):
            continue
        if winners is not None and winners.get(task) != attempt:
            continue
        if winners is None and expected is None and found.input_digest:
            # A try that Spark gave up may have saved the half of its task's rows that it was given.
            raise ConflictError(
                f"job {folder.job_id} at {folder.store.url}: its driver ended before it said which tries of "
                f"its tasks count, as of {task}; nothing was published; run the write again"
            )
        rival = chosen.get(task)
        if rival is None or (found.stamp, attempt) > (rival.stamp, rival.attempt_id):
            chosen[task] = Chosen(task, attempt, digest, found.stamp)
    _refuse_missing(folder, expected, winners, chosen)
    return [chosen[task] for task in sorted(chosen)]


def newest_job_attempt(folder: JobFolder) -> JobAttemptId | None:
    """Return the job attempt whose tasks a commit takes where neither caller nor lease names one.

    The one with the newest task list, else the one with the newest pending set; None if nothing was written.
    """
    listed = max(folder.attempts(), key=lambda tasks: tasks.stamp, default=None)
    if listed is not None:
        return listed.job_attempt
    newest: tuple[Stamp, JobAttemptId] | None = None
    for found, _ in folder.pending_sets():
        newest = max(newest or (found.stamp, found.job_attempt), (found.stamp, found.job_attempt))
    return None if newest is None else newest[1]


def chosen_digest(chosen: list[Chosen]) -> str:
    """Return the digest of what was chosen: what an audit verdict binds."""
    lines = "".join(f"{one.task_id}\n{one.attempt_id}\n{one.digest}\n" for one in chosen)
    return hashlib.sha256(lines.encode()).hexdigest()


def _refuse_missing(
    folder: JobFolder,
    expected: ExpectedTasks | None,
    winners: Mapping[TaskId, AttemptId] | None,
    chosen: Mapping[TaskId, Chosen],
) -> None:
    wanted = {task.task_id for task in expected.tasks} if expected is not None else set(winners or ())
    missing = sorted(wanted - set(chosen))
    if missing:
        raise ConflictError(
            f"job {folder.job_id} at {folder.store.url}: {len(missing)} of {len(wanted)} tasks have not "
            f"committed ({', '.join(missing[:5])}{', …' if len(missing) > 5 else ''}); nothing was published"
        )
