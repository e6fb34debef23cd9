"""Destinations: their live data, now and over time, and what blocks them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Literal, NamedTuple

from fastapi import APIRouter

from lockgate.plugins.web.answers import DEFAULT_LIMIT, After, Limit, Model, Page, key_after, page_of
from lockgate.plugins.web.api.job import detail_of
from lockgate.plugins.web.api.jobs import COUNTED_UNENDED
from lockgate.plugins.web.api.turn import READS_AT_ONCE, Turn
from lockgate.plugins.web.api.turns import KnownDestination, read_turn, total
from lockgate.plugins.web.request_reads import Reads, ReadsOfRequest
from lockgate.storage_core.commit.destination.log import DestinationLog
from lockgate.storage_core.commit.destination.log import Turn as LogTurn
from lockgate.storage_core.commit.records.job_record import Column
from lockgate.storage_core.commit.records.shards import total_rows
from lockgate.storage_core.commit.registry import job_lists
from lockgate.storage_core.commit.registry.queries import UNENDED
from lockgate.storage_core.commit.registry.rows import Destination
from lockgate.storage_core.concurrency import in_order
from lockgate.storage_core.errors import (
    JournalUnavailableError,
    LockgateError,
    StateLostError,
)
from lockgate.storage_core.journal import Reading
from lockgate.storage_core.stores import open_store
from lockgate.storage_core.tables.maintenance import TableStatus, status_of

router = APIRouter(prefix="/destinations", tags=["destinations"])

EXACT_SHARDS: Final = 64
"""Lists of up to 1,000 files that one page reads, to know which removed files were live."""

CHARTED_TURNS: Final = 500
"""Newest turns that a chart reads."""

SMALL_FILE_BYTES: Final = 32 * 1024 * 1024
MANY_FILES: Final = 100
"""From this many live files on that are small on average, a hint recommends compaction."""


class DestinationRow(Model):
    """A destination of jobs.

    Attributes:
        first_s: When its first job was registered; None if the journal does not know it.
        last_s: When a job of it was last changed.
        unended: How many jobs have not ended there; the jobs of a page are counted up to 1,000. None if the
            journal does not know it.
    """

    destination: str
    first_s: float | None = None
    last_s: float | None = None
    unended: int | None = None


class ColumnType(Model):
    """A column of a destination's rows.

    Attributes:
        type: Its type, as the writer spells it.
    """

    name: str
    type: str


class DestinationDetail(Model):
    """A destination: what is live, and what blocks it.

    Attributes:
        live_files: None if the log could not be read.
        average_file_bytes: None without live files.
        columns: None if no job has recorded them.
        hint: A hint at compaction, in one sentence; empty if there is no need.
        blocked: Why the newest turn blocks the destination, and the remedy; empty if it does not.
        tables: Its tables of other formats.
        unknown: What could not be read, one sentence each.
    """

    destination: str
    turn: int | None
    live_files: int | None
    live_rows: int | None
    live_bytes: int | None
    average_file_bytes: float | None
    columns: tuple[ColumnType, ...] | None
    hint: str
    blocked: str
    tables: tuple[TableStatus, ...] = ()
    unknown: tuple[str, ...] = ()


@router.get("")
def destination_rows(
    reads: ReadsOfRequest, after: After = None, limit: Limit = DEFAULT_LIMIT
) -> Page[DestinationRow]:
    """Return the known destinations: those of the registry, then those that only the host knows."""
    is_hosts, begin = key_after("destinations", after, bool, str) or (False, "")
    known: Sequence[Destination] = ()
    unended: dict[str, int] = {}
    hosted: list[str] = [url for url in sorted(reads.destinations) if not is_hosts or url > begin]
    unknown: tuple[str, ...] = ()

    def query(reading: Reading) -> tuple[Sequence[Destination], dict[str, int], set[str]]:
        rows = reading.where(Destination, {}, after=(begin,) if begin else None, limit=limit + 1)
        both = reading.find(Destination, [(url,) for url in hosted]) if hosted else ()
        unended = job_lists.unended_at(reading, UNENDED, [row.url for row in rows], COUNTED_UNENDED)
        return rows, unended, {row.url for row in both}

    if reads.has_journal and not is_hosts:
        try:
            known, unended, registered = reads.journal(query)
            hosted = [url for url in hosted if url not in registered]
        except (JournalUnavailableError, StateLostError) as error:
            unknown = (f"The journal: {error}",)
    found = [
        (
            False,
            DestinationRow(
                destination=row.url, first_s=row.first_s, last_s=row.last_s, unended=unended.get(row.url, 0)
            ),
        )
        for row in known
    ]
    found += [(True, DestinationRow(destination=url)) for url in hosted]
    return page_of(
        "destinations",
        found,
        limit,
        lambda one: (one[0], one[1].destination),
        lambda one: one[1],
        unknown=unknown,
    )


@router.get("/detail")
def destination_detail(reads: ReadsOfRequest, destination: KnownDestination) -> DestinationDetail:
    """Return a destination's live data, and what blocks it. What cannot be read is named in `unknown`.

    Raises:
        DestinationNotFoundError: The destination is not known.
    """
    place, unknown = reads.known(destination), list[str]()
    log = DestinationLog(open_store(place, reads.settings))
    newest: LogTurn | None = None
    live, tables = _Live(), list[TableStatus]()
    try:
        newest = reads.store(place, log.highest)
        live = reads.store(place, partial(_live, log))
        tables = reads.store(place, partial(status_of, log))
    except LockgateError as error:
        unknown.append(str(error))
    if live.note:
        unknown.append(live.note)
    average = live.size / live.files if live.size is not None and live.files else None
    columns = None if live.columns is None else tuple(map(ColumnType.model_validate, live.columns))
    return DestinationDetail(
        destination=place,
        turn=None if newest is None else newest.number,
        live_files=live.files,
        live_rows=live.rows,
        live_bytes=live.size,
        average_file_bytes=average,
        columns=columns,
        hint="" if average is None else _hint(live.files or 0, average),
        blocked=_blocked(reads, place, newest),
        tables=_explained(reads, place, newest, tables),
        unknown=tuple(unknown),
    )


def live_totals(
    reads: Reads, destination: str, ends_s: Sequence[float], what: Literal["files", "bytes"]
) -> tuple[float | None, ...]:
    """Return what was live at each of these times; None where it is too long ago.

    Args:
        reads: Reads of the application.
        destination: The destination.
        ends_s: Times in seconds since the epoch, ascending.
        what: The number of files, or their bytes.

    Raises:
        DestinationNotFoundError: The destination is not known.
        StoreUnavailableError: The store does not answer.
    """
    place = reads.known(destination)
    log = DestinationLog(open_store(place, reads.settings))

    def count() -> tuple[float | None, ...]:
        newest = log.highest()
        if newest is None:
            return (0.0,) * len(ends_s)
        live = _live(log)
        total: float | None = live.files if what == "files" else live.size
        lowest = max(0, newest.number - CHARTED_TURNS)
        turns = in_order(partial(read_turn, log.store), range(newest.number, lowest, -1), READS_AT_ONCE)
        values: list[float | None] = []
        turn = next(turns, None)
        for end_s in reversed(ends_s):
            while isinstance(turn, Turn) and total is not None and (turn.decided_s or end_s + 1) > end_s:
                if turn.verdict == "published":
                    total = max(0, total - _added(turn, what))
                if turn.turn == lowest + 1:  # before it lies what is not read, or nothing
                    total = 0.0 if turn.turn == 1 else None
                turn = next(turns, None)
            if isinstance(turn, str):
                total = None  # it cannot be read what it added
            values.append(total)
        return tuple(reversed(values))

    return reads.store(place, count)


def _added(turn: Turn, what: Literal["files", "bytes"]) -> int:
    """Return how much more was live after a turn than before it."""
    if what == "files":
        return turn.added_files - turn.removed_files
    return turn.added_bytes - turn.removed_bytes


class _Live(NamedTuple):
    """Totals of the live files; None if they cannot be read.

    Attributes:
        note: Why the totals may be inexact.
    """

    files: int | None = None
    rows: int | None = None
    size: int | None = None
    columns: tuple[Column, ...] | None = None
    note: str = ""


def _live(log: DestinationLog) -> _Live:
    """Return the totals of the live files, from the totals of the log's lists where these are exact."""
    read = log.read()
    base, outcomes, columns = read.base, read.outcomes, read.columns
    added = [*(base.live if base else ()), *(ref for outcome in outcomes for ref in outcome.added)]
    removed = [ref for outcome in outcomes for ref in outcome.removed]
    if removed and len(added) + len(removed) <= EXACT_SHARDS:
        manifest = log.manifest()
        return _Live(len(manifest.files), manifest.rows, manifest.size, manifest.columns)
    if columns is not None:
        columns = tuple(column for column in columns if not column.dropped)
    files, size = (total(added, name) - total(removed, name) for name in ("files", "size"))
    rows = None if removed else total_rows(ref.rows for ref in added)
    note = (
        "The live files were not counted one by one: files that a job replaced and that were in no earlier "
        "turn are subtracted too."
    )
    return _Live(max(0, files), rows, max(0, size), columns, note if removed else "")


def _hint(files: int, average: float) -> str:
    if files < MANY_FILES or average >= SMALL_FILE_BYTES:
        return ""
    return (
        f"{files:,} live files have {average / 2**20:,.1f} MiB on average, which slows readers down: "
        "rewrite them as fewer files with a job in mode replace."
    )


def _explained(
    reads: Reads, place: str, newest: LogTurn | None, tables: list[TableStatus]
) -> tuple[TableStatus, ...]:
    """Return the tables, each that is behind with what the job of the newest turn says of it."""
    if newest is None or not any(table.enabled and table.behind and not table.detail for table in tables):
        return tuple(tables)
    owner = newest.claim.job_id
    try:
        job = detail_of(reads, owner, place)
        why = "" if job.receipt is None else job.receipt.tables_behind
        if job.row.ended_s is None:
            why = f"job {owner} of turn {newest.number} has not ended"
    except LockgateError as error:
        why = f"job {owner} of turn {newest.number} cannot be read: {error}"
    return tuple(replace(one, detail=why) if one.behind and not one.detail else one for one in tables)


def _blocked(reads: Reads, place: str, newest: LogTurn | None) -> str:
    """Return why the newest turn blocks other jobs, and the remedy; empty if it does not."""
    if newest is None or newest.outcome is not None:
        return ""
    owner = newest.claim.job_id
    try:
        row = detail_of(reads, owner, place).row
    except LockgateError as error:
        return f"Turn {newest.number} is held by job {owner}, which cannot be read: {error}"
    # Other jobs pass the turn of an undecided or ended job without a driver, and wait for a live one.
    if row.needs != "you" or row.phase not in {"committing", "unreadable"}:
        return ""
    remedy = "set it aside with `lockgate jobs quarantine`" if row.phase == "unreadable" else "recover it"
    return (
        f"Turn {newest.number} is held by job {owner}. {row.needs_why} No other job commits here until it "
        f"has ended: {remedy}."
    )
