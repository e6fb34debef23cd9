"""Plan: the frozen list of the files that a commit adds and removes; and the decision to carry it out.

A plan is a record that refers to shards, which list the files.

Source: commit protocol, "What lies where".
"""

from __future__ import annotations

from typing import Literal

import msgspec

from lockgate.storage_core.commit.records.codec import Record
from lockgate.storage_core.commit.records.job_record import (
    Column,
    Count,
    JobAttemptId,
    JobId,
    Mode,
    TurnNumber,
)
from lockgate.storage_core.commit.records.pending_set import PendingFile
from lockgate.storage_core.commit.records.shards import ShardRef
from lockgate.storage_core.ids import Token
from lockgate.storage_core.stamp import Stamp


class RemovedFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file that a commit removes, as it was found when the plan was made.

    Attributes:
        key: Its key, in a form that can be printed and encoded.
        name: Bytes of the key in the store if they are not UTF-8; otherwise empty.
        managed: The file is live in the destination log; its name is unique and never written again.
    """

    key: str
    size: Count
    version: str
    modified_s: float
    token: Token | None
    managed: bool
    name: bytes = b""

    @property
    def listed_key(self) -> str:
        """Key as the store's listing returns it."""
        return self.name.decode("utf-8", "surrogateescape") or self.key


class PlanHead(Record, frozen=True, tag="plan"):
    """`plan/<digest>/plan.json`: the frozen plan of a commit, named by its digest.

    Attributes:
        columns: Columns of the destination after the job; None if the writer does not know its own.
    """

    job_id: JobId
    job_attempt: JobAttemptId
    turn: TurnNumber
    mode: Mode
    chosen_digest: str
    audit: str | None
    additions: tuple[ShardRef, ...]
    removals: tuple[ShardRef, ...]
    columns: tuple[Column, ...] | None = None


class AdditionShard(Record, frozen=True, tag="plan-additions"):
    """Up to 1,000 pending files of a plan."""

    files: tuple[PendingFile, ...]


class RemovalShard(Record, frozen=True, tag="plan-removals"):
    """Up to 1,000 files that a plan removes."""

    files: tuple[RemovedFile, ...]


class Decision(Record, frozen=True, tag="decision"):
    """`COMMIT_STARTED`: created once, if absent; final, unless an operator quarantines an unreadable job."""

    job_id: JobId
    verdict: Literal["commit", "abort", "quarantined"]
    token: Token
    stamp: Stamp
    decided_s: float
    decided_by: str
    plan: str | None = None
    turn: TurnNumber | None = None
    reason: str = ""
