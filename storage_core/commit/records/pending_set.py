"""Pending set: the files of a task attempt, which no reader sees until the job commits.

Also the records about pending sets: an aborted attempt, which has none that counts, and an audit's verdict.
Source: commit protocol, "What lies where".
"""

from __future__ import annotations

import msgspec

from lockgate.storage_core.commit.records.codec import Record
from lockgate.storage_core.commit.records.job_record import AttemptId, Count, JobAttemptId, JobId, TaskId
from lockgate.storage_core.commit.records.log_records import LiveFile
from lockgate.storage_core.stamp import Stamp
from lockgate.storage_core.stores import PendingUpload


class ColumnStatistics(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Statistics of one column of one file, with values as text.

    Attributes:
        type: Name of its Arrow type, such as `int64`; empty if it is not known.
    """

    type: str = ""
    nulls: int | None = None
    minimum: str | None = None
    maximum: str | None = None


# Files have no cycles: garbage collection would take three quarters of the time of decoding 100,000 of them.
class PendingFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One file that is completely written and not visible yet.

    Attributes:
        path: Path below the destination as the writer gave it, without the short id.
        upload: Upload whose completion makes the file visible.
        rows: Number of rows, if the writer knows it.
        sha256: SHA-256 of the bytes as they were uploaded, of a file that was staged first; an audit compares
            what it read with it.
        again: The file of an earlier turn that it is, if its job is a revert.
    """

    path: str
    upload: PendingUpload
    rows: Count | None = None
    sha256: str | None = None
    statistics: dict[str, ColumnStatistics] = {}
    again: LiveFile | msgspec.UnsetType = msgspec.UNSET

    @property
    def key(self) -> str:
        """Final key of the file."""
        return self.upload.key


class PendingSet(Record, frozen=True, tag="pending-set"):
    """Immutable record of an attempt's pending files; creating it is the task commit.

    Attributes:
        stamp: Try number, and the attempt's place in the order of the task's commits; the greatest counts.
    """

    job_id: JobId
    job_attempt: JobAttemptId
    task_id: TaskId
    attempt_id: AttemptId
    stamp: Stamp
    input_digest: str
    created_s: float
    files: tuple[PendingFile, ...]


class AbortedAttempt(Record, frozen=True, tag="aborted-attempt"):
    """`tasks/<task>/<attempt>.aborted`: the attempt is never selected, even if it still commits."""

    job_id: JobId
    task_id: TaskId
    attempt_id: AttemptId
    reason: str


class AuditVerdict(Record, frozen=True, tag="audit"):
    """`audits/<chosen digest>.json`: the verdict of an audit on exactly these pending sets."""

    job_id: JobId
    chosen_digest: str
    passed: bool
    suite: str
    summary: dict[str, str | int | float | bool | None]
    decided_s: float
