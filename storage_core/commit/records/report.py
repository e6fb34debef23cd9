"""Records of a job's end, of the fate of each file, and of a sweep's state.

Source: commit protocol, "What lies where".
"""

from __future__ import annotations

from typing import Literal

import msgspec

from lockgate.storage_core.commit.records.codec import Record
from lockgate.storage_core.commit.records.job_record import JobId
from lockgate.storage_core.commit.records.log_records import Receipt


class FileFate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fate of one file of a job."""

    key: str
    fate: Literal["published", "lost", "reverted", "aborted", "removed", "kept", "retained", "unsettled"]
    detail: str = ""


class FileFateShard(Record, frozen=True, tag="fates"):
    """`report/<digest>.json`: the fates of up to 1,000 files of a long report."""

    fates: tuple[FileFate, ...]


class Report(Record, frozen=True, tag="report"):
    """`report.json`: the fate of every file, for committed and failed jobs.

    Attributes:
        counts: Number of files by fate.
        shards: Digests of the `FileFateShard` records of all but the last files.
        fates: Fates of the last files, or of all files of a short report.
    """

    job_id: JobId
    ended: Literal["committed", "failed"]
    reason: str
    receipt: Receipt | None
    counts: dict[str, int]
    shards: tuple[str, ...]
    fates: tuple[FileFate, ...]


class Ended(Record, frozen=True, tag="ended"):
    """`COMMIT_SUCCESS` or `COMMIT_FAIL`: terminal.

    Attributes:
        retained_until_s: Time until which the plan is kept, with the replaced files of a committed job. The
            first sweep after it checks a reverted job once more. 0 if nothing is left to do.
    """

    job_id: JobId
    ended: Literal["committed", "failed"]
    ended_s: float
    reason: str = ""
    receipt: Receipt | None = None
    retained_until_s: float = 0.0


class SweepState(Record, frozen=True, tag="sweep"):
    """`sweep.json`: times at which a sweep first saw each ownerless upload, by key and upload id."""

    seen: dict[str, float]
