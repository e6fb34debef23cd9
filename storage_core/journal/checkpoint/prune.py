"""Prune entries that a verified checkpoint contains. Their request ids are kept for a retention period.

Pruning works in short transactions, so that writers do not wait long. The next run continues an interrupted
one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
from sqlalchemy import ColumnElement, Connection, Table, and_, delete, exists, func, insert, select, update

from lockgate.storage_core.concurrency import Progress, no_progress
from lockgate.storage_core.errors import ConflictError
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.journal.checkpoint.checkpoints import Checkpoints
from lockgate.storage_core.journal.database.schema import ENTRY, HEAD, HOLDER, LEASE, REQUEST
from lockgate.storage_core.journal.entries.state import Request
from lockgate.storage_core.journal.journal import Journal, maintenance
from lockgate.storage_core.journal.read.snapshot_read import Reading, read_epochs, survived
from lockgate.storage_core.journal.safe_mode import refuse_in_safe_mode
from lockgate.storage_core.journal.write.head import Head
from lockgate.storage_core.stamp import Stamp

SLICE: Final = 500
"""Entries, or request ids, in each transaction."""

CLOCKS_APART_S: Final = 300.0
"""Extra retention of request ids: a client's clock may be ahead of the database's by this much."""

DEAD_HOLDER_S: Final = 86_400.0
"""Age of the last renewal at which the row of a holder without leases is deleted."""

DEAD_UPLOAD_S: Final = 86_400.0
"""Age at which an upload of a checkpoint counts as abandoned."""


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    """Result of pruning, or of a dry run.

    Attributes:
        up_to: Newest verified checkpoint, up to which entries are pruned. None if there is none.
        entries: Number of pruned entries.
        requests: Number of deleted request ids.
        checkpoints: Deleted checkpoints.
        is_dry_run: Whether nothing was changed.
    """

    up_to: Stamp | None
    entries: int
    requests: int
    checkpoints: tuple[Stamp, ...]
    is_dry_run: bool


def prune(
    journal: Journal,
    checkpoints: Checkpoints,
    *,
    kept: int,
    request_retention_s: float,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> Pruned:
    """Delete entries up to the newest verified checkpoint, old request ids and old checkpoints.

    Args:
        journal: Journal to prune.
        checkpoints: Checkpoints of this journal.
        kept: Number of checkpoints to keep, in addition to the newest verified one.
        request_retention_s: How long ids of pruned entries are kept; older requests are then refused.
        dry_run: Only return what would be deleted.
        progress: Called with the number of entries and ids.

    Raises:
        SafeModeError: The journal is in safe mode.
        MalformedJournalError: The checkpoint has changed since it was verified; nothing was pruned.
        ConflictError: A failover or a restore has cut off the history of the checkpoint.
        OutcomeUnknownError: No answer; pruning again is harmless.
    """
    with step("prune"):
        refuse_in_safe_mode(journal, "pruning")
        with journal.reading() as reading:
            reading.stay_open()
            up_to = _newest_verified(reading, checkpoints)
            forgotten_before_s = reading.now_s() - request_retention_s
            entries, requests = _counts(reading, up_to, forgotten_before_s - CLOCKS_APART_S)
            now_s = reading.now_s()
        old = _old(checkpoints, up_to, kept)
        if not dry_run:
            for done in _prune_entries(journal, up_to):
                progress("prune entries", done, entries)
            for done in _forget_requests(journal, forgotten_before_s):
                progress("forget requests", done, requests)
            if up_to is not None:
                _forget_holders(journal, now_s - DEAD_HOLDER_S)
            for stamp in old:
                checkpoints.delete(stamp)
            checkpoints.abort_uploads(now_s - DEAD_UPLOAD_S)
    return Pruned(up_to=up_to, entries=entries, requests=requests, checkpoints=tuple(old), is_dry_run=dry_run)


def _newest_verified(reading: Reading, checkpoints: Checkpoints) -> Stamp | None:
    """Return the newest verified checkpoint of this history, after reading it completely."""
    status, epochs = reading.status(), read_epochs(reading)
    there = {checkpoint.stamp for checkpoint in checkpoints.all()}
    usable = [
        stamp
        for stamp in checkpoints.verified()
        if stamp in there and stamp <= status.stamp and survived(epochs, stamp)
    ]
    if not usable:
        return None
    checkpoints.check_verified(usable[-1], status.identity)
    return usable[-1]


def _old(checkpoints: Checkpoints, up_to: Stamp | None, kept: int) -> list[Stamp]:
    stamps = [checkpoint.stamp for checkpoint in checkpoints.all()]
    return [stamp for stamp in stamps[:-kept] if stamp != up_to]


def _counts(reading: Reading, up_to: Stamp | None, before_s: float) -> tuple[int, int]:
    """Return how many entries and request ids will be deleted, including the ids of these entries."""
    is_pruned = ENTRY.c.sequence <= (0 if up_to is None else up_to.sequence)
    entries = _count(reading, ENTRY, is_pruned)
    return entries, _count(reading, REQUEST, REQUEST.c.at_s < before_s) + _count(
        reading, ENTRY, is_pruned, ENTRY.c.at_s < before_s
    )


def _count(reading: Reading, table: Table, *which: ColumnElement[bool]) -> int:
    query = select(func.count()).select_from(table).where(table.c.journal == reading.journal, *which)
    return reading.connection.execute(query).scalar_one()


def _prune_entries(journal: Journal, up_to: Stamp | None) -> Iterator[int]:
    """Delete entries up to a stamp; yield how many are done."""
    done = 0
    while up_to is not None:
        with maintenance(journal, "prune") as (connection, head):
            _refuse_cut_off(Reading(connection, journal.database, journal.name), head, up_to)
            count = _prune_slice(connection, journal.name, up_to.sequence)
        if not count:
            return
        done += count
        yield done


def _refuse_cut_off(reading: Reading, head: Head, up_to: Stamp) -> None:
    """Raise if the journal's history no longer contains the checkpoint."""
    if up_to > head.stamp or not survived(read_epochs(reading), up_to):
        raise ConflictError(
            f"checkpoint {up_to} does not belong to the journal's history, now at {head.stamp}: a failover "
            "or a restore has happened; no entry was pruned since; verify, then prune again"
        )


def _prune_slice(connection: Connection, journal: str, last: int) -> int:
    """Delete the oldest entries and keep their request ids; return how many."""
    head = HEAD.c.journal == journal
    pruned: int = connection.execute(select(HEAD.c.pruned_sequence).where(head)).scalar_one()
    until = min(pruned + SLICE, last)
    if until <= pruned:
        return 0
    # Without the lower bound PostgreSQL reads again the index entries of all slices before.
    gone = (ENTRY.c.journal == journal, ENTRY.c.sequence > pruned, ENTRY.c.sequence <= until)
    names = ["journal", *(field.name for field in msgspec.structs.fields(Request))]
    ids = select(*(ENTRY.c[name] for name in names)).where(*gone)
    connection.execute(insert(REQUEST).from_select(names, ids))
    connection.execute(delete(ENTRY).where(*gone))
    connection.execute(update(HEAD).where(head).values(pruned_sequence=until))
    return until - pruned


def _forget_requests(journal: Journal, before_s: float) -> Iterator[int]:
    """Delete old request ids; refuse requests of that age first; yield how many are done."""
    done = 0
    old = select(REQUEST.c.request_id).where(
        REQUEST.c.journal == journal.name, REQUEST.c.at_s < before_s - CLOCKS_APART_S
    )
    with (
        journal.reading() as reading,
        reading.connection.execute(old.execution_options(yield_per=SLICE)) as found,
    ):
        for ids in found.scalars().partitions():
            with maintenance(journal, "forget") as (connection, head):
                since_s = max(head.requests_since_s, before_s)
                moved = update(HEAD).where(HEAD.c.journal == journal.name)
                connection.execute(moved.values(requests_since_s=since_s))
                connection.execute(
                    delete(REQUEST).where(REQUEST.c.journal == journal.name, REQUEST.c.request_id.in_(ids))
                )
            done += len(ids)
            yield done


def _forget_holders(journal: Journal, before_s: float) -> None:
    """Delete the rows of holders that have no lease and have not renewed since a time."""
    is_old = and_(HOLDER.c.journal == journal.name, HOLDER.c.renewed_s < before_s)
    has_lease = exists().where(LEASE.c.journal == HOLDER.c.journal, LEASE.c.holder == HOLDER.c.holder)
    old = select(HOLDER.c.holder).where(is_old, ~has_lease).limit(SLICE)
    while True:
        with maintenance(journal, "forget-holders") as (connection, _):
            if not connection.execute(delete(HOLDER).where(is_old, HOLDER.c.holder.in_(old))).rowcount:
                return
