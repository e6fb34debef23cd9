"""Live files of a destination: shards of added and removed files, and checkpoints.

Source: commit protocol, "What lies where".
"""

from __future__ import annotations

import msgspec

from lockgate.storage_core.commit.records.codec import Record
from lockgate.storage_core.commit.records.job import Column, Count, JobId, Turn
from lockgate.storage_core.commit.records.plan import ShardRef
from lockgate.storage_core.ids import Token


class LiveFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file that manifest readers see, and the job that wrote it."""

    key: str
    size: Count
    rows: Count | None
    token: Token
    job_id: JobId


class LiveShard(Record, frozen=True, tag="live-files"):
    """Up to 1,000 live files of an outcome or a checkpoint."""

    files: tuple[LiveFile, ...]


class KeyShard(Record, frozen=True, tag="removed-keys"):
    """Up to 1,000 keys that an outcome removed."""

    keys: tuple[str, ...]


class LogCheckpoint(Record, frozen=True, tag="checkpoint"):
    """`log/<turn>.checkpoint`: the fold of all outcomes up to a turn."""

    turn: Turn
    live: tuple[ShardRef, ...]
    columns: tuple[Column, ...] | None


class CheckpointHint(Record, frozen=True, tag="checkpoint-hint"):
    """`checkpoint.json`: a turn that has a checkpoint; only a hint, so it may be outdated."""

    turn: Turn
