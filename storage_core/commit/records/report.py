"""Records of a job's end: what became of every file, and what a sweep has seen.

Source: commit protocol, "What lies where".
"""

from __future__ import annotations

from typing import Literal

import msgspec

from lockgate.storage_core.commit.records.codec import Record
from lockgate.storage_core.commit.records.job import (
    JobId,
)
from lockgate.storage_core.commit.records.log_entries import (
    Receipt,
)


class FileOutcome(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What became of one file of a job."""

    key: str
    fate: Literal["published", "lost", "reverted", "aborted", "removed", "kept", "retained", "unsettled"]
    detail: str = ""


class FileOutcomeShard(Record, frozen=True, tag="fates"):
    """`report/<digest>.json`: 1,000 files of a long report."""

    fates: tuple[FileOutcome, ...]


class Report(Record, frozen=True, tag="report"):
    """`report.json`: every file's fate, also of failed jobs.

    Attributes:
        counts: How many files met each fate.
        shards: Digests of `FileOutcomeShard`, for all but the last files.
        fates: The last files, or all of a short report.
    """

    job_id: JobId
    ended: Literal["committed", "failed"]
    reason: str
    receipt: Receipt | None
    counts: dict[str, int]
    shards: tuple[str, ...]
    fates: tuple[FileOutcome, ...]


class Ended(Record, frozen=True, tag="ended"):
    """`COMMIT_SUCCESS` or `COMMIT_FAIL`: terminal.

    Attributes:
        retained_until_s: Until then the plan is kept. Of a committed job: so are replaced files. Of a
            reverted one: the next sweep after it looks once more. 0: there is nothing left to do.
    """

    job_id: JobId
    ended: Literal["committed", "failed"]
    ended_s: float
    reason: str = ""
    receipt: Receipt | None = None
    retained_until_s: float = 0.0


class SweepState(Record, frozen=True, tag="sweep"):
    """`sweep.json`: ownerless uploads and when a sweep first saw them, by key and upload id."""

    seen: dict[str, float]
