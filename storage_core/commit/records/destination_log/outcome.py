"""Outcome of a turn, and the receipt of a published job.

Source: commit protocol, "What lies where".
"""

from __future__ import annotations

from typing import Literal

import msgspec

from lockgate.storage_core.commit.records.codec import Record
from lockgate.storage_core.commit.records.job import Column, JobId, Mode, Turn
from lockgate.storage_core.commit.records.plan import ShardRef


class Outcome(Record, frozen=True, tag="outcome"):
    """`log/<turn>.json`: the outcome of a turn, decided once.

    Attributes:
        added: References to `LiveShard` records, `shards/<digest>.json`; only if `published`.
        removed: References to `KeyShard` records.
    """

    job_id: JobId
    turn: Turn
    verdict: Literal["published", "reverted", "passed"]
    decided_s: float
    added: tuple[ShardRef, ...] = ()
    removed: tuple[ShardRef, ...] = ()
    columns: tuple[Column, ...] | None = None
    receipt: Receipt | None = None
    reason: str = ""


class Receipt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Summary of a published job; immutable.

    Attributes:
        rows: Number of rows; None if it is unknown for any file.
        size: Total size in bytes.
    """

    job_id: JobId
    turn: Turn
    committer: str
    mode: Mode
    plan: str
    files: int
    rows: int | None
    size: int
    removed_files: int
    published_s: float
