"""Pruning: entries that a verified checkpoint holds go, their request ids stay for a while, then go too.

It goes in slices, each a short transaction of its own, so that writers never wait long. One that dies is gone
on with by the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
from sqlalchemy import ColumnElement, Connection, Table, delete, func, insert, select, update

from lockgate.storage_core.concurrency import Progress, no_progress
from lockgate.storage_core.errors import ConflictError
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.journal.checkpoint.checkpoints import Checkpoints
from lockgate.storage_core.journal.database.schema import ENTRY, HEAD, REQUEST
from lockgate.storage_core.journal.entries.rows import Request
from lockgate.storage_core.journal.journal import Journal
from lockgate.storage_core.journal.maintenance import upkeep
from lockgate.storage_core.journal.read.epochs import read_epochs, survived
from lockgate.storage_core.journal.read.snapshot_read import Reading
from lockgate.storage_core.journal.safe_mode import refuse_in_safe_mode
from lockgate.storage_core.journal.write.transaction import Head
from lockgate.storage_core.stamp import Stamp

SLICE: Final = 500
"""Entries, or request ids, in one transaction."""

CLOCKS_APART_S: Final = 300.0
"""A client's clock may be ahead of the database's by so much: ids are kept so long beyond their time."""

DEAD_UPLOAD_S: Final = 86_400.0
"""An upload of a checkpoint that was begun so long ago is nobody's."""


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    """What pruning did, or would do.

    Attributes:
        up_to: The newest verified checkpoint; entries that it holds go. None if there is none: then none go.
        entries: Pruned.
        requests: Ids that were forgotten.
        checkpoints: Those that were deleted.
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
    """Drop entries up to the newest verified checkpoint, request ids that are old, and old checkpoints.

    Args:
        journal: Which.
        checkpoints: Of this journal.
        kept: How many checkpoints stay; the newest verified one stays in any case.
        request_retention_s: Ids of pruned entries are kept so long; an older request is refused from then on.
        dry_run: Only tell what would go.
        progress: Hears the entries and ids.

    Raises:
        SafeModeError: The journal is in safe mode.
        MalformedJournalError: The checkpoint is not the one that was verified any more: nothing was pruned.
        ConflictError: A failover or a restore has come between: the checkpoint is of what it cut off.
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
            for stamp in old:
                checkpoints.delete(stamp)
            checkpoints.abort_uploads(now_s - DEAD_UPLOAD_S)
    return Pruned(up_to=up_to, entries=entries, requests=requests, checkpoints=tuple(old), is_dry_run=dry_run)


def _newest_verified(reading: Reading, checkpoints: Checkpoints) -> Stamp | None:
    """Return the newest checkpoint that folding has proved and that can still be read, whole."""
    status, epochs = reading.status(), read_epochs(reading)
    there = {checkpoint.stamp for checkpoint in checkpoints.all()}
    proved = [
        stamp
        for stamp in checkpoints.vouched()
        if stamp in there and stamp <= status.stamp and survived(epochs, stamp)
    ]
    if not proved:
        return None
    checkpoints.check_vouched(proved[-1], status.identity)
    return proved[-1]


def _old(checkpoints: Checkpoints, up_to: Stamp | None, kept: int) -> list[Stamp]:
    stamps = [checkpoint.stamp for checkpoint in checkpoints.all()]
    return [stamp for stamp in stamps[:-kept] if stamp != up_to]


def _counts(reading: Reading, up_to: Stamp | None, before_s: float) -> tuple[int, int]:
    """Return how many entries go, and how many request ids, those of these entries among them."""
    goes = ENTRY.c.sequence <= (0 if up_to is None else up_to.sequence)
    entries = _count(reading, ENTRY, goes)
    return entries, _count(reading, REQUEST, REQUEST.c.at_s < before_s) + _count(
        reading, ENTRY, goes, ENTRY.c.at_s < before_s
    )


def _count(reading: Reading, table: Table, *which: ColumnElement[bool]) -> int:
    question = select(func.count()).select_from(table).where(table.c.journal == reading.journal, *which)
    return reading.connection.execute(question).scalar_one()


def _prune_entries(journal: Journal, up_to: Stamp | None) -> Iterator[int]:
    """Drop entries up to one; yields how many are done."""
    done = 0
    while up_to is not None:
        with upkeep(journal, "prune") as (connection, head):
            _refuse_cut_off(Reading(connection, journal.database, journal.name), head, up_to)
            count = _prune_slice(connection, journal.name, up_to.sequence)
        if not count:
            return
        done += count
        yield done


def _refuse_cut_off(reading: Reading, head: Head, up_to: Stamp) -> None:
    """Raise if the entries up to a checkpoint are others now than those that it holds."""
    if up_to > head.stamp or not survived(read_epochs(reading), up_to):
        raise ConflictError(
            f"checkpoint {up_to} is not of the history that the journal goes on from, now at {head.stamp}: a "
            "failover or a restore has come between; no entry was pruned since; verify, then prune again"
        )


def _prune_slice(connection: Connection, journal: str, last: int) -> int:
    """Move the request ids of the oldest entries aside, and drop the entries; returns how many."""
    head = HEAD.c.journal == journal
    pruned: int = connection.execute(select(HEAD.c.pruned_sequence).where(head)).scalar_one()
    until = min(pruned + SLICE, last)
    if until <= pruned:
        return 0
    gone = (ENTRY.c.journal == journal, ENTRY.c.sequence <= until)
    names = ["journal", *(field.name for field in msgspec.structs.fields(Request))]
    ids = select(*(ENTRY.c[name] for name in names)).where(*gone)
    connection.execute(insert(REQUEST).from_select(names, ids))
    connection.execute(delete(ENTRY).where(*gone))
    connection.execute(update(HEAD).where(head).values(pruned_sequence=until))
    return until - pruned


def _forget_requests(journal: Journal, before_s: float) -> Iterator[int]:
    """Forget ids; yields how many are done. Requests so old are refused before the first one is forgotten."""
    done = 0
    old = select(REQUEST.c.request_id).where(
        REQUEST.c.journal == journal.name, REQUEST.c.at_s < before_s - CLOCKS_APART_S
    )
    with (
        journal.reading() as reading,
        reading.connection.execute(old.execution_options(yield_per=SLICE)) as found,
    ):
        for ids in found.scalars().partitions():
            with upkeep(journal, "forget") as (connection, head):
                since_s = max(head.requests_since_s, before_s)
                moved = update(HEAD).where(HEAD.c.journal == journal.name)
                connection.execute(moved.values(requests_since_s=since_s))
                connection.execute(
                    delete(REQUEST).where(REQUEST.c.journal == journal.name, REQUEST.c.request_id.in_(ids))
                )
            done += len(ids)
            yield done
