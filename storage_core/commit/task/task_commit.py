"""Task commit: create the pending set if absent. From then on only the job's end drops its files.

Source: commit protocol, "Writing and task commit".
"""

from __future__ import annotations

from lockgate.storage_core.commit.records.job_folder import JobFolder, claim, find
from lockgate.storage_core.commit.records.pending_set import PendingSet
from lockgate.storage_core.commit.records.task import AbortedAttempt
from lockgate.storage_core.errors import ConflictError, FencedError


def create_pending_set(folder: JobFolder, record: PendingSet) -> PendingSet:
    """Commit a task attempt; idempotent.

    Args:
        folder: Folder of the job.
        record: Pending set of the attempt.

    Raises:
        ConflictError: The job is decided, or another execution has used the attempt's id; nothing of this
            attempt is committed.
        FencedError: The attempt was aborted by another process.
        OutcomeUnknownError: It is unknown whether the pending set exists; call again.
    """
    _check_undecided(folder, record)
    key = folder.pending_set_key(record.task_id, record.attempt_id)
    stored = claim(folder.store, key, record)
    if stored.files != record.files:
        raise ConflictError(
            f"{key} exists with other content; nothing of this attempt is committed; "
            "use a new attempt id for every execution of a task"
        )
    return stored


def _check_undecided(folder: JobFolder, record: PendingSet) -> None:
    if folder.decision() is not None:
        raise ConflictError(
            f"job {folder.job_id} is decided: task {record.task_id} cannot commit any more; "
            "nothing of this attempt is committed"
        )
    key = folder.key(f"tasks/{record.task_id}/{record.attempt_id}.aborted")
    if find(folder.store, AbortedAttempt, key) is not None:
        raise FencedError(
            f"attempt {record.attempt_id} of task {record.task_id} was aborted by another process"
        )
