"""Records of the destination log: turn claims, outcomes, live files and checkpoints.

Source: commit protocol, "What lies where".
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from lockgate.storage_core.commit.records.codec import Record
from lockgate.storage_core.commit.records.job_record import Column, Count, JobId, Mode, TurnNumber
from lockgate.storage_core.commit.records.shards import ShardRef
from lockgate.storage_core.ids import Token
from lockgate.storage_core.stamp import Stamp


class TurnClaim(Record, frozen=True, tag="turn"):
    """`log/<turn>.turn`: the job whose turn it is to commit to the destination.

    Attributes:
        stamp: Stamp of the claimant's lease; others wait for the turn only while that lease is live.
    """

    job_id: JobId
    token: Token
    stamp: Stamp


class Outcome(Record, frozen=True, tag="outcome"):
    """`log/<turn>.json`: the outcome of a turn, decided once.

    Attributes:
        added: References to `LiveShard` records, `shards/<digest>.json`; only if `published`.
        removed: References to `KeyShard` records.
        statistics: Digests of `StatisticsShard` records, one for each of `added`; only if the destination has
            tables.
    """

    job_id: JobId
    turn: TurnNumber
    verdict: Literal["published", "reverted", "passed"]
    decided_s: float
    added: tuple[ShardRef, ...] = ()
    removed: tuple[ShardRef, ...] = ()
    columns: tuple[Column, ...] | None = None
    receipt: Receipt | None = None
    reason: str = ""
    statistics: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET


class Receipt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Summary of a published job; immutable.

    Attributes:
        rows: Number of rows; None if it is unknown for any file.
        size: Total size in bytes.
        removed_files: Number of files that are live no more.
        undeleted_files: Number of these that the store refused to delete before the job's end.
        tables_behind: Which tables of the destination do not show the job at its end yet, and why.
    """

    job_id: JobId
    turn: TurnNumber
    committer: str
    mode: Mode
    plan: str
    files: int
    rows: int | None
    size: int
    removed_files: int
    published_s: float
    undeleted_files: int = 0
    tables_behind: str = ""


class LiveFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file that manifest readers see, and the job that wrote it.

    Attributes:
        first_key: Key at which its job wrote it, if a revert has made it live again at another one.
    """

    key: str
    size: Count
    rows: Count | None
    token: Token
    job_id: JobId
    first_key: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def identity(self) -> tuple[str, Token]:
        """What stays the same when a revert makes the file live again."""
        return self.key if self.first_key is msgspec.UNSET else self.first_key, self.token


class LiveShard(Record, frozen=True, tag="live-files"):
    """Up to 1,000 live files of an outcome or a checkpoint."""

    files: tuple[LiveFile, ...]


class KeyShard(Record, frozen=True, tag="removed-keys"):
    """Up to 1,000 keys that an outcome removed."""

    keys: tuple[str, ...]


class Tag(Record, frozen=True, tag="tag"):
    """`tags/<name>.json`: a name for a turn, created if absent.

    Attributes:
        created_s: Time at which it was created.
    """

    name: str
    turn: Count
    created_s: float


class HistoryRule(Record, frozen=True, tag="history-rule"):
    """`history.json`: which turns keep files that later jobs replaced; tagged turns always do.

    Attributes:
        keep_s: Turns that were the last one at a moment of so many seconds ago until now.
        keep_turns: So many turns before the last one.
        in_place: Kept files stay at their keys, for readers of older Delta versions and Iceberg snapshots;
            programs that list files read them with the live ones.
    """

    keep_s: Annotated[float, msgspec.Meta(ge=0)]
    keep_turns: Count
    in_place: bool = False


class ExpiredFiles(Record, frozen=True, tag="expired-files"):
    """`expired.json`: replaced files that no kept turn has, and when a sweep first found so."""

    seen: dict[str, float]


class LogCheckpoint(Record, frozen=True, tag="checkpoint"):
    """`log/<turn>.checkpoint`: the fold of all outcomes up to a turn.

    Attributes:
        latest_s: Latest time at which one of these turns was decided; None in checkpoints without it.
    """

    turn: TurnNumber
    live: tuple[ShardRef, ...]
    columns: tuple[Column, ...] | None
    latest_s: float | None = None


class CheckpointHint(Record, frozen=True, tag="checkpoint-hint"):
    """`checkpoint.json`: a turn that has a checkpoint; only a hint, so it may be outdated."""

    turn: TurnNumber
