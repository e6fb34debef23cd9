"""Records of a job's end, and of the result of each file.

Source: commit protocol, "What lies where".
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from lockgate.storage_core.commit.records.codec import Record
from lockgate.storage_core.commit.records.job_record import JobId
from lockgate.storage_core.commit.records.log_records import Receipt

REPLACED: Final = ("removed", "kept", "retained", "undeleted")
"""Results of the files that a published job replaced."""


class FileResult(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Result of one file of a job.

    Attributes:
        result: Of a replaced file: `removed`; `kept`, because it is not the job's to delete; `retained` in
            the destination's history; or `undeleted`: the store refuses, and recovery and sweep try again.
    """

    key: str
    result: Literal[
        "published", "lost", "reverted", "aborted", "removed", "kept", "retained", "undeleted", "left"
    ]
    detail: str = ""


class FileResultShard(Record, frozen=True, tag="file-results"):
    """`report/<digest>.json`: the files of up to 1,000 files of a long report."""

    files: tuple[FileResult, ...]


class Report(Record, frozen=True, tag="report"):
    """`report.json`: the result of every file, for committed and failed jobs.

    Attributes:
        counts: Number of files by result.
        shards: Digests of the `FileResultShard` records of all but the last files.
        files: Results of the last files, or of all files of a short report.
    """

    job_id: JobId
    ended: Literal["committed", "failed"]
    reason: str
    receipt: Receipt | None
    counts: dict[str, int]
    shards: tuple[str, ...]
    files: tuple[FileResult, ...]


class Ended(Record, frozen=True, tag="ended"):
    """`COMMIT_SUCCESS` or `COMMIT_FAIL`: terminal.

    Attributes:
        reason: Why the job failed, or why a published one has no `_SUCCESS`.
        retained_until_s: Time until which the plan of a reverted job is kept: the first sweep after it checks
            the job once more. 0 if nothing is left to do.
    """

    job_id: JobId
    ended: Literal["committed", "failed"]
    ended_s: float
    reason: str = ""
    receipt: Receipt | None = None
    retained_until_s: float = 0.0
