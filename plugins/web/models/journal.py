"""The journal, its observers and checkpoints."""

from __future__ import annotations

from lockgate.plugins.web.models.model import Model


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
        behind_entries: Number of entries that it lacks; None if it does not answer.
        lag_s: Age of the oldest of them, 0 if it lacks none; None if it does not answer.
        error: Why it is not read; empty if it is.
    """

    where: str
    stamp: str | None
    behind_entries: int | None
    lag_s: float | None
    error: str = ""


class JournalDetail(Model):
    """The journal.

    Attributes:
        where: URL of the database, without a password; empty if there is no journal.
        leases: Number of leases in each state, among the first 10,000.
        safe_mode: Reasons; while there is one, nothing is recovered or deleted.
        unknown: What could not be read, one sentence each.
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
