"""The journal: its stamp, safe mode, checkpoints and observers; what cannot be read is named."""

from __future__ import annotations

from lockgate.plugins.web.models.journal import CheckpointRow, JournalDetail, ObserverRow, SafeModeReason
from lockgate.plugins.web.models.model import Page
from lockgate.plugins.web.paging import cursor, key_after
from lockgate.plugins.web.request_reads import Reads
from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.journal.checkpoint.checkpoints import Checkpoint, open_checkpoints
from lockgate.storage_core.journal.observers.reading_client import ObserverStatus
from lockgate.storage_core.journal.read.snapshot_read import Reading, Status, count_leases

NO_JOURNAL = (
    "LOCKGATE_JOURNAL_URL=none: there is no journal, so no registry of jobs, no leases in it, no blobs."
)


def journal_detail(reads: Reads) -> JournalDetail:
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
    since = None if newest is None else newest.stamp.sequence
    return JournalDetail(
        where=where,
        journal=reads.settings.journal,
        stamp=None if status is None else str(status.stamp),
        epoch=None if status is None else status.stamp.epoch,
        # Their numbers have no gap.
        entries=None if status is None else status.stamp.sequence - status.pruned_sequence,
        leases=leases,
        safe_mode=()
        if status is None
        else tuple(
            SafeModeReason(reason=one.reason, since_s=one.since_s, text=one.text)
            for one in status.safe_reasons
        ),
        checkpoint=None if newest is None else _row(newest),
        entries_since_checkpoint=None if status is None else status.stamp.sequence - (since or 0),
        unknown=tuple(unknown),
    )


def observers(reads: Reads) -> Page[ObserverRow]:
    """Return the observers, each compared with the primary; none if reads go to the primary."""
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


def checkpoints(reads: Reads, after: str | None, limit: int) -> Page[CheckpointRow]:
    """Return a page of the journal's checkpoints, the newest first."""
    key = key_after("checkpoints", after, int, int)
    if not reads.has_journal:
        return Page(items=(), unknown=(NO_JOURNAL,))
    try:
        found = [
            one for one in _checkpoints(reads) if key is None or (one.stamp.epoch, one.stamp.sequence) < key
        ]
    except LockgateError as error:
        return Page(items=(), unknown=(str(error),))
    shown = found[:limit]
    last = shown[-1].stamp if shown else None
    return Page(
        items=tuple(_row(one) for one in shown),
        next_after=cursor("checkpoints", (last.epoch, last.sequence))
        if last and len(found) > limit
        else None,
    )


def _state(reading: Reading) -> tuple[str, Status, dict[str, int]]:
    leases = {str(state): count for state, count in count_leases(reading).items()}
    return reading.database.name, reading.status(), leases


def _checkpoints(reads: Reads) -> list[Checkpoint]:
    """Return all checkpoints, the newest first; only `LOCKGATE_CHECKPOINTS_KEPT` of them are kept."""
    return reads.store("store of the checkpoints", lambda: open_checkpoints(reads.settings).all()[::-1])


def _row(one: Checkpoint) -> CheckpointRow:
    return CheckpointRow(stamp=str(one.stamp), created_s=one.made_s, size_bytes=one.size)
