"""Project the turns of a destination's log into the table formats that it has.

A projection is a pure function of the log: any process may write any version, and two of them write the
same. A version is created if absent and never replaced. `PROJECTIONS` lists the formats, which are
implemented above this package.

Source: tables, "When it is written".
"""

from __future__ import annotations

import logging
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple, Protocol
from uuid import uuid4

import msgspec

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.commit.destination.log import DestinationLog
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.create_if_absent import claim, find
from lockgate.storage_core.commit.records.job_record import Column
from lockgate.storage_core.commit.records.log_records import KeyShard, LiveFile, LiveShard
from lockgate.storage_core.commit.records.pending_set import ColumnStatistics
from lockgate.storage_core.commit.records.shards import SHARD_ENTRIES, read_shard, write_shard
from lockgate.storage_core.commit.records.table_records import StatisticsShard, TableFormat, TablesRecord
from lockgate.storage_core.concurrency import in_order
from lockgate.storage_core.errors import (
    InvalidInputError,
    LockgateError,
    MalformedRecordError,
    NotAppliedError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.ids import new_token
from lockgate.storage_core.stores import Store
from lockgate.storage_core.stores.protocol import in_pages

LOG: Final = logging.getLogger("lockgate.tables")

PROJECTIONS: Final[Mapping[str, str]] = {
    "delta": "lockgate.storage_core.tables.delta:DELTA",
    "iceberg": "lockgate.storage_core.tables.iceberg:ICEBERG",
}
"""The projection of each format, as `module:name`."""

Statistics = Mapping[str, ColumnStatistics]
"""Statistics of a file, by column."""
KEPT_LISTS: Final = 8
"""Lists of a turn's files in memory: those of a larger turn are read again for each pass over them."""


@dataclass(frozen=True)
class AddedFiles:
    """Files that a turn adds, each with its statistics, of which few are in memory at a time.

    Attributes:
        lists: Number of their lists.
        read: Returns a list.
        at_once: Maximum number of lists that are read at a time.
    """

    lists: int
    read: Callable[[int], Iterable[tuple[LiveFile, Statistics]]]
    at_once: int = 1

    def __bool__(self) -> bool:
        return self.lists > 0

    def __iter__(self) -> Iterator[tuple[LiveFile, Statistics]]:
        for files in in_order(self.read, range(self.lists), self.at_once):
            yield from files


class TurnChange(NamedTuple):
    """What a version of a table has more and less than the one before it.

    Attributes:
        turn: Turn of the version.
        is_first: Whether it is the table's first version.
        verdict: Outcome of the turn; a turn that is not `published` changes nothing.
        job_id: Job of the turn.
        decided_s: Time of its outcome.
        columns: Columns after the turn; None if its job did not know them.
        rows_change: Whether its rows differ; False for a compaction.
        added: Files, each with its statistics.
        removed: Keys of removed files; some may never have been in the table.
    """

    turn: int
    is_first: bool
    verdict: str
    job_id: str
    decided_s: float
    columns: tuple[Column, ...] | None
    rows_change: bool
    added: AddedFiles
    removed: Sequence[str]


class Projection(Protocol):
    """A table format that turns are projected into."""

    @property
    def title(self) -> str:
        """Name of the format for people."""

    def check_columns(self, columns: Iterable[Column]) -> None:
        """Raise `InvalidInputError` if a table cannot have a column's type."""

    def refuse_foreign(self, store: Store) -> None:
        """Raise `ConflictError` if the destination has a table of another program in this format."""

    def last_turn(self, store: Store, tables: TablesRecord) -> int:
        """Return the turn of the newest version; 0 if there is none.

        Raises:
            ConflictError: Another program has written a version.
        """

    def files(self, store: Store, tables: TablesRecord, turn: int) -> Iterable[str]:
        """Return the keys of the files that a reader of a turn's version sees.

        Raises:
            MalformedRecordError: A version cannot be read.
            ObjectNotFoundError: A version is gone.
        """

    def foreign_keys(self, store: Store, tables: TablesRecord) -> Sequence[str]:
        """Return the keys of versions that cannot be the log's, and of all after them, the newest first."""

    def project(self, store: Store, tables: TablesRecord, change: TurnChange) -> bool:
        """Write the version of a turn, unless it is there; False if the version before it is missing.

        Raises:
            ConflictError: Another program has written that version, or the one before it.
            InvalidInputError: The table cannot have the turn's files or columns.
            OutcomeUnknownError: It is not known whether it was written; try again.
        """


def projection(name: str) -> Projection:
    """Return the projection of a format.

    Raises:
        InvalidInputError: There is no such format.
    """
    if name not in PROJECTIONS:
        raise InvalidInputError(f"table format {name!r} is not known; use one of {', '.join(PROJECTIONS)}")
    found: Any = pkgutil.resolve_name(PROJECTIONS[name])
    made: Projection = found
    return made


def read_tables(store: Store) -> TablesRecord | None:
    """Return the table formats of a destination; None if it never had any. Mostly one request."""
    with step("tables"):
        newest = find(store, TablesRecord, layout.tables(1))
        if newest is None:
            return None
        keys = [info.key for page in store.pages(layout.TABLES, after=layout.tables(1)) for info in page]
        return find(store, TablesRecord, keys[-1]) if keys else newest


def enable_tables(
    log: DestinationLog,
    formats: Iterable[str],
    clock: Clock,
    *,
    columns: Sequence[Column] | None = None,
    from_turn: int | None = None,
    statistics: Mapping[str, Statistics] | None = None,
) -> TablesRecord:
    """Have the turns of a destination projected into these formats, from now on; idempotent.

    Args:
        log: Log of the destination.
        formats: Names of the formats.
        clock: Clock for the time of the change.
        columns: Columns of the job that asks for them.
        from_turn: Turn of the first version; by default the last one that is decided.
        statistics: Statistics of the files that are live after that turn, by key, if their footers were read.

    Raises:
        InvalidInputError: A format or a turn is not known, no job has recorded its columns, or a table cannot
            have one of them.
        ConflictError: The destination has a table of another program in this format.
    """
    wanted = {name: projection(name) for name in formats}
    while True:
        current = read_tables(log.store)
        new = {name: each for name, each in wanted.items() if current is None or name not in current.enabled}
        if current is not None and not new:
            return current
        with step("tables"):
            formats_before = {} if current is None else current.formats
            known = columns if columns is not None else log.columns()
            is_new = not formats_before.keys() >= new.keys()
            if is_new and known is None and not statistics and last_decided(log):
                raise InvalidInputError(
                    f"{log.store.url}: no job has recorded its columns, which a table needs; nothing was "
                    "changed; give the columns of the data when a job is set up, or let `lockgate tables "
                    "enable` read them from the files' footers"
                )
            made = dict(formats_before)
            for name, each in new.items():
                each.check_columns(known or ())
                if name in formats_before:
                    made[name] = msgspec.structs.replace(formats_before[name], enabled=True)
                else:
                    each.refuse_foreign(log.store)
                    made[name] = _first_version(log, from_turn, statistics or {})
        _change(log.store, current, made, clock)


def disable_tables(store: Store, formats: Iterable[str], clock: Clock) -> TablesRecord | None:
    """Stop projecting turns into these formats; their versions stay as they are."""
    names = list(formats)
    while True:
        current = read_tables(store)
        if current is None or not any(name in current.enabled for name in names):
            return current
        made = {
            name: msgspec.structs.replace(each, enabled=each.enabled and name not in names)
            for name, each in current.formats.items()
        }
        _change(store, current, made, clock)


def _change(store: Store, current: TablesRecord | None, made: dict[str, TableFormat], clock: Clock) -> None:
    """Write the next change, unless another process has: the caller looks again."""
    number = 1 if current is None else current.number + 1
    record = TablesRecord(
        number=number,
        table_id=str(uuid4()) if current is None else current.table_id,
        token=new_token(),
        changed_s=clock.now_s(),
        formats=made,
    )
    with step("tables"):
        claim(store, layout.tables(number), record)


def _first_version(
    log: DestinationLog, from_turn: int | None, statistics: Mapping[str, Statistics]
) -> TableFormat:
    decided = last_decided(log)
    first = max(decided, 1) if from_turn is None else from_turn
    if not 1 <= first <= max(decided, 1):
        raise InvalidInputError(f"from_turn={first}: the log of {log.store.url} has turns 1 to {decided}")
    if not statistics:
        return TableFormat(first_turn=first)
    keys = sorted(log.manifest(first).files)
    return TableFormat(
        first_turn=first,
        statistics=tuple(
            write_statistics(log.store, [statistics.get(key, {}) for key in page], with_types=True)
            for page in in_pages(keys, SHARD_ENTRIES)
        ),
    )


def last_decided(log: DestinationLog) -> int:
    """Return the last turn that has an outcome; 0 if there is none."""
    highest = log.highest()
    if highest is None:
        return 0
    return highest.number if highest.outcome is not None else highest.number - 1


def write_statistics(store: Store, files: Iterable[Statistics], *, with_types: bool) -> str:
    """Write the statistics of a list of files; return their digest.

    Args:
        store: Store of the destination.
        files: Statistics of each file.
        with_types: Keep the columns' types, because the job has not recorded its columns.
    """
    replace = msgspec.structs.replace
    kept = (
        dict(file) if with_types else {name: replace(column, type="") for name, column in file.items()}
        for file in files
    )
    return write_shard(store, layout.log_shard, StatisticsShard(files=tuple(kept)))


def project(
    store: Store,
    tables: TablesRecord | None,
    turn: int,
    at_once: int = 1,
    *,
    most: int | None = None,
) -> dict[str, Exception]:
    """Bring each enabled table up to a turn that is decided; return why not, by format.

    An error of any kind is returned: a projection never fails a commit.

    Args:
        store: Store of the destination.
        tables: Its table formats.
        turn: The turn.
        at_once: Maximum number of records that are read at a time.
        most: Turns of a table that is behind which are projected at most; None: all.
    """
    failed: dict[str, Exception] = {}
    log = DestinationLog(store, at_once)
    with step("tables"):
        for name, table in {} if tables is None else tables.enabled.items():
            try:
                if table.first_turn <= turn and tables is not None:
                    _catch_up(log, projection(name), tables, table, turn, most=most)
            except Exception as error:  # noqa: BLE001 - see above
                failed[name] = error
    return failed


def _catch_up(
    log: DestinationLog,
    made: Projection,
    tables: TablesRecord,
    table: TableFormat,
    turn: int,
    *,
    most: int | None,
) -> None:
    if made.project(log.store, tables, change_of(log, table, turn)):
        return
    first = max(made.last_turn(log.store, tables) + 1, table.first_turn)
    for number in range(first, turn + 1):
        if most is not None and number == first + most:
            raise NotAppliedError(f"a commit makes up for {most} turns at most")
        if not made.project(log.store, tables, change_of(log, table, number)):
            raise ObjectNotFoundError(
                f"{log.store.url}: the {made.title} version of turn {number - 1} was deleted meanwhile"
            )


def behind(store: Store, tables: TablesRecord | None, turn: int, failed: Mapping[str, Exception]) -> str:
    """Describe which tables are how far behind a turn, and why; log it. Empty if none is."""
    texts = []
    for name, error in failed.items():
        table = None if tables is None else tables.formats.get(name)
        number = "some"
        try:
            if tables is not None and table is not None:
                newest = projection(name).last_turn(store, tables)
                number = str(max(0, turn - max(newest, table.first_turn - 1)))
        except Exception:  # noqa: BLE001, S110 - it is unknown, and the first error says why
            pass
        why = str(error) if isinstance(error, LockgateError) else f"{type(error).__name__}: {error}"
        texts.append(f"{name} is {number} turn{'' if number == '1' else 's'} behind: {why}")
    text = "; ".join(texts)
    if text:
        LOG.warning("tables of %s: %s; to catch up, run `lockgate tables repair`", store.url, text)
    return text


def may_pass(error: Exception) -> bool:
    """Return whether a projection that failed may succeed without a change of the destination or its data."""
    return isinstance(error, (StoreUnavailableError, OutcomeUnknownError))


def change_of(log: DestinationLog, table: TableFormat, turn: int) -> TurnChange:
    """Return what a turn changes in a table.

    Raises:
        ObjectNotFoundError: The turn has no outcome.
        MalformedLogError: The outcome or a list cannot be read.
    """
    outcome = log.outcome(turn)
    if outcome is None:
        raise ObjectNotFoundError(f"{log.store.url}: turn {turn} is not decided")
    store, columns, digests = log.store, outcome.columns, outcome.statistics or ()
    lists: Sequence[Callable[[], Sequence[LiveFile]]]
    removed: list[str] = []
    if turn == table.first_turn and (turn > 1 or table.statistics):
        manifest = log.manifest(turn)
        columns, digests = manifest.columns, table.statistics
        pages = in_pages((manifest.files[key] for key in sorted(manifest.files)), SHARD_ENTRIES)
        lists = [partial(tuple, page) for page in pages]
    else:
        lists = [partial(_files, store, ref.digest) for ref in outcome.added]
        for ref in outcome.removed:
            removed += read_shard(store, KeyShard, layout.log_shard, ref.digest).keys

    @lru_cache(KEPT_LISTS)
    def read(number: int) -> Sequence[tuple[LiveFile, Statistics]]:
        files = lists[number]()
        return tuple(zip(files, _statistics(store, digests, number, len(files)), strict=True))

    return TurnChange(
        turn=turn,
        is_first=turn == table.first_turn,
        verdict=outcome.verdict,
        job_id=outcome.job_id,
        decided_s=outcome.decided_s,
        columns=None if columns is None else tuple(column for column in columns if not column.dropped),
        rows_change=outcome.receipt is None or str(outcome.receipt.mode) != "compact",
        added=AddedFiles(len(lists), read, log.at_once),
        removed=removed,
    )


def _files(store: Store, name: str) -> Sequence[LiveFile]:
    return read_shard(store, LiveShard, layout.log_shard, name).files


def _statistics(store: Store, digests: Sequence[str], number: int, files: int) -> Iterable[Statistics]:
    """Return the statistics of one list of files; empty ones if they are not recorded, or damaged."""
    nothing: Iterator[Statistics] = iter([{}] * files)
    if number >= len(digests):
        return nothing
    try:
        shard = read_shard(store, StatisticsShard, layout.log_shard, digests[number])
    except (MalformedRecordError, ObjectNotFoundError) as error:
        LOG.warning("%s: the statistics of %d files are left out: %s", store.url, files, error)
        return nothing
    return shard.files if len(shard.files) == files else nothing
