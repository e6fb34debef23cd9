"""Task commit: the pending set is created if absent. From there on its files belong to the job, or to nobody.

Source: commit protocol, "Writing and task commit".
"""

from __future__ import annotations

from lockgate.storage_core.commit.records.job import AbortedAttempt, PendingSet
from lockgate.storage_core.commit.records.job_folder import JobFolder, claim, find
from lockgate.storage_core.errors import ConflictError, FencedError


def create_pending_set(folder: JobFolder, record: PendingSet) -> PendingSet:
    """Commit a task attempt; what an earlier call has created counts as this one's.

    Args:
        folder: Of the job.
        record: Of the attempt: all that it has made pending.

    Raises:
        ConflictError: The job is decided, or another execution has used the attempt's id; nothing of this
            attempt is committed.
        FencedError: The attempt was aborted by another process.
        OutcomeUnknownError: It is not known whether the pending set stands; call again.
    """
    _check_undecided(folder, record)
    key = folder.pending_set_key(record.task_id, record.attempt_id)
    standing = claim(folder.store, key, record)
    if standing.files != record.files:
        raise ConflictError(
            f"{key} stands already with other content; nothing of this attempt is committed; "
            "every execution of a task needs an attempt id of its own"
        )
    return standing


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
