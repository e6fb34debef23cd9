"""Task lists and task commits: a pending set is created if absent; then only the job's end drops its files.

The stamp of a pending set is its try number, and the number of the task's pending sets before it. An attempt
that commits after another has committed sees that pending set, so its stamp is greater. Two commits at the
same moment may get equal stamps; then the store's time of creation decides.

Source: commit protocol, "Writing and task commit".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import BinaryIO, NoReturn

import msgspec

from lockgate.storage_core.commit.records.create_if_absent import claim
from lockgate.storage_core.commit.records.expected_tasks import ExpectedTask, ExpectedTasks
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.pending_set import PendingSet
from lockgate.storage_core.commit.uploads.pending_file_writer import PendingFileWriter
from lockgate.storage_core.concurrency import Together
from lockgate.storage_core.errors import ConflictError, FencedError, InvalidInputError, NoTasksError
from lockgate.storage_core.ids import AttemptId, JobAttemptId, TaskId, check_id
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


def create_pending_set(folder: JobFolder, record: PendingSet) -> PendingSet:
    """Commit a task attempt; idempotent.

    Args:
        folder: Folder of the job.
        record: Pending set of the attempt; the epoch of its stamp is the try number.

    Returns:
        The stored pending set, with its whole stamp.

    Raises:
        ConflictError: The job is decided, or another execution has used the attempt's id; nothing of this
            attempt is committed.
        FencedError: The attempt was aborted by another process.
        OutcomeUnknownError: It is unknown whether the pending set exists; call again.
    """
    record = msgspec.structs.replace(record, stamp=_next_stamp(folder, record))
    key = folder.pending_set_key(record.task_id, record.attempt_id)
    stored = claim(folder.store, key, record)
    if stored.files != record.files:
        raise ConflictError(
            f"{key} exists with other content; nothing of this attempt is committed; "
            "use a new attempt id for every execution of a task"
        )
    return stored


def refuse_unclosed(
    attempt_id: AttemptId,
    task_id: TaskId,
    opened: Mapping[str, BinaryIO],
    writers: Iterable[PendingFileWriter],
) -> None:
    """Refuse to commit an attempt with an open file, because its writer may not have finished.

    Raises:
        InvalidInputError: A file is open.
    """
    unclosed = {path for path, file in opened.items() if not file.closed}
    unclosed.update(writer.path for writer in writers if not writer.closed)
    if unclosed:
        raise InvalidInputError(
            f"attempt {attempt_id} of task {task_id}: {min(unclosed)!r} was not closed, so it may be "
            "incomplete; nothing of this attempt is committed; close every file before the task commits "
            "(with attempt.open(…) as file), or drop it (attempt.drop), and run the task again"
        )


def _next_stamp(folder: JobFolder, record: PendingSet) -> Stamp:
    """Return a stamp greater than those of the task's pending sets of this try and of tries before it."""
    with Together(2) as together:
        attempts = together.start(lambda: folder.ended_attempts(record.task_id))
        if folder.decision() is not None:
            raise ConflictError(
                f"job {folder.job_id} is decided: task {record.task_id} cannot commit any more; "
                "nothing of this attempt is committed"
            )
        ended = attempts.result()
    if record.attempt_id in ended.aborted:
        raise FencedError(
            f"attempt {record.attempt_id} of task {record.task_id} was aborted by another process"
        )
    # Pending sets are not deleted while the job is undecided, so their number only grows.
    return Stamp(record.stamp.epoch, 1 + len(ended.committed - {record.attempt_id}))
