"""The journal: its stamp, safe mode, checkpoints and observers; what cannot be read is named."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter

from lockgate.plugins.web.answers import DEFAULT_LIMIT, After, Limit, Model, Page, key_after, page_of
from lockgate.plugins.web.request_reads import Reads, ReadsOfRequest
from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.journal.checkpoint.checkpoints import Checkpoint, open_checkpoints
from lockgate.storage_core.journal.observers.reading_client import ObserverStatus
from lockgate.storage_core.journal.read.snapshot_read import Reading, Status, count_leases

router = APIRouter(prefix="/journal", tags=["journal"])

NO_JOURNAL: Final = (
    "LOCKGATE_JOURNAL_URL=none: there is no journal, so no registry of jobs, no leases in it, no blobs."
)


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


@router.get("")
def journal_detail(reads: ReadsOfRequest) -> JournalDetail:
    """Return the state of the journal."""
    unknown: list[str] = []
    status: Status | None = None
    leases: dict[str, int] = {}
    where, newest = "", None
    if not reads.has_journal:
        unknown.append(NO_JOURNAL)
    else:
        try:
            where, status, leases = reads.journal(_state)
        except LockgateError as error:
            unknown.append(str(error))
        try:
            newest = next(iter(_checkpoints(reads)), None)
        except LockgateError as error:
            unknown.append(f"The checkpoints cannot be read: {error}")
    since = 0 if newest is None else newest.stamp.sequence
    reasons = () if status is None else status.safe_reasons
    return JournalDetail(
        where=where,
        journal=reads.settings.journal,
        stamp=None if status is None else str(status.stamp),
        epoch=None if status is None else status.stamp.epoch,
        # Their numbers have no gap.
        entries=None if status is None else status.stamp.sequence - status.pruned_sequence,
        leases=leases,
        safe_mode=tuple(SafeModeReason.model_validate(one) for one in reasons),
        checkpoint=None if newest is None else _row(newest),
        entries_since_checkpoint=None if status is None else status.stamp.sequence - since,
        unknown=tuple(unknown),
    )


@router.get("/observers")
def observers(reads: ReadsOfRequest) -> Page[ObserverRow]:
    """List the observers, compared with the primary; none if reads go to the primary."""
    if not reads.has_journal:
        return Page(items=(), unknown=(NO_JOURNAL,))

    def compare() -> list[ObserverStatus]:
        return reads.client.observers()

    try:
        found = reads.store("observers", compare)
    except LockgateError as error:
        return Page(items=(), unknown=(str(error),))
    return Page(
        items=tuple(
            ObserverRow(
                where=one.name,
                stamp=None if one.stamp is None else str(one.stamp),
                behind_entries=one.behind_entries,
                lag_s=one.lag_s,
                error=one.why_down or "",
            )
            for one in found
        )
    )


@router.get("/checkpoints")
def checkpoints(
    reads: ReadsOfRequest, after: After = None, limit: Limit = DEFAULT_LIMIT
) -> Page[CheckpointRow]:
    """List the checkpoints, the newest first."""
    key = key_after("checkpoints", after, int, int)
    if not reads.has_journal:
        return Page(items=(), unknown=(NO_JOURNAL,))
    try:
        found = [one for one in _checkpoints(reads) if key is None or _place(one) < key]
    except LockgateError as error:
        return Page(items=(), unknown=(str(error),))
    return page_of("checkpoints", found, limit, _place, _row)


def _state(reading: Reading) -> tuple[str, Status, dict[str, int]]:
    leases = {str(state): count for state, count in count_leases(reading).items()}
    return reading.database.name, reading.status(), leases


def _checkpoints(reads: Reads) -> list[Checkpoint]:
    """Return all checkpoints, the newest first; only `LOCKGATE_CHECKPOINTS_KEPT` of them are kept."""
    return reads.store("store of the checkpoints", lambda: open_checkpoints(reads.settings).all()[::-1])


def _place(one: Checkpoint) -> tuple[int, int]:
    return one.stamp.epoch, one.stamp.sequence


def _row(one: Checkpoint) -> CheckpointRow:
    return CheckpointRow(stamp=str(one.stamp), created_s=one.made_s, size_bytes=one.size)
