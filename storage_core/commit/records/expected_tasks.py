"""Expected tasks: the frozen list of the tasks that a job attempt must commit.

Source: commit protocol, "What lies where".
"""

from __future__ import annotations

import msgspec

from lockgate.storage_core.commit.records.codec import Record
from lockgate.storage_core.commit.records.job_record import Count, JobAttemptId, JobId, TaskId
from lockgate.storage_core.stamp import Stamp


class StagedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of a frozen staging listing: its path below the staging directory, and its size in bytes.

    Attributes:
        modified_ns: Time of its last change: a file of equal name and size may have other bytes.
    """

    path: str
    size: Count
    modified_ns: int = 0


class ExpectedTask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One task that a job attempt must commit.

    Attributes:
        input_digest: Digest of the input; equal in two job attempts only if the task's output would be.
        files: Staged files to turn into pending uploads.
    """

    task_id: TaskId
    input_digest: str = ""
    files: tuple[StagedFile, ...] = ()


class ExpectedTasks(Record, frozen=True, tag="expected-tasks"):
    """`attempts/<job attempt>.json`: the frozen task list of one job attempt.

    Attributes:
        stamp: Its sequence is the number of the list among those of the job; the greatest is the newest.
    """

    job_id: JobId
    job_attempt: JobAttemptId
    stamp: Stamp
    staging: str | None
    tasks: tuple[ExpectedTask, ...]
