"""The journal, its observers and checkpoints."""

from __future__ import annotations

from lockgate.plugins.web.models.base import Model


class SafeModeReason(Model):
    """A reason for safe mode."""

    reason: str
    since_s: float | None
    text: str


class CheckpointRow(Model):
    """A checkpoint of the journal."""

    stamp: str
    created_s: float
    size_bytes: int


class ObserverRow(Model):
    """An observer.

    Attributes:
        lag_s: None if it does not answer.
    """

    where: str
    stamp: str | None
    lag_s: float | None
    error: str = ""


class JournalDetail(Model):
    """The journal.

    Attributes:
        where: URL of the database, without a password; empty if there is no journal.
        safe_mode: Reasons; empty if writes are allowed.
    """

    where: str
    journal: str
    stamp: str | None
    epoch: int | None
    entries: int | None
    leases: dict[str, int]
    safe_mode: tuple[SafeModeReason, ...]
    checkpoint: CheckpointRow | None
    entries_since_checkpoint: int | None
    unknown: tuple[str, ...] = ()
