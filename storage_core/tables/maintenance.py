"""Compare, catch up and repair the tables of a destination."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from lockgate.storage_core.clock import SystemClock
from lockgate.storage_core.commit.destination.log import DestinationLog, Manifest
from lockgate.storage_core.commit.destination.projection import (
    PROJECTIONS,
    Statistics,
    last_decided,
    project,
    projection,
    read_tables,
)
from lockgate.storage_core.commit.destination.visible_files import visible_files
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.codec import digest
from lockgate.storage_core.commit.records.create_if_absent import create
from lockgate.storage_core.commit.records.table_records import TablesRecord
from lockgate.storage_core.commit.setup.capabilities import with_recorded_capabilities
from lockgate.storage_core.commit.uploads.parquet_footer import TAIL_BYTES, statistics_in_tail
from lockgate.storage_core.concurrency import in_parallel
from lockgate.storage_core.errors import (
    AlreadyExistsError,
    InvalidInputError,
    LockgateError,
    ObjectNotFoundError,
)
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores import Store, open_store

QUARANTINE: Final = f"{layout.ROOT}quarantine/tables/"
SHOWN: Final = 10
"""Maximum number of keys in a report."""


@dataclass(frozen=True, kw_only=True)
class TableStatus:
    """One table of a destination; no struct of msgspec, so that the API of the pages can have it too.

    Attributes:
        format: Name of the format.
        enabled: Whether turns are projected into it.
        first_turn: Turn of its first version.
        turn: Turn of its newest version; None if that is unknown.
        behind: Number of decided turns that it does not have; None if that is unknown.
        detail: Why it cannot be read or brought up.
    """

    format: str
    enabled: bool
    first_turn: int
    turn: int | None
    behind: int | None
    detail: str = ""


class TableCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader of a table sees, compared with the log and the files.

    Attributes:
        format: Name of the format.
        turn: Turn of its newest version.
        files: Number of its files.
        rows: Their rows by the log; None if they are unknown.
        missing: The first files that the log has after that turn, and the table has not.
        extra: The first files that only the table has.
        gone: The first files of the table that do not exist.
        detail: Why it cannot be read.
    """

    format: str
    turn: int | None
    files: int = 0
    rows: int | None = None
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    detail: str = ""

    @property
    def is_equal(self) -> bool:
        """Whether a reader sees the files of the log, and can read them."""
        return not (self.missing or self.extra or self.gone or self.detail)


def open_destination(destination: str, settings: Settings) -> DestinationLog:
    """Return the log of a destination for its maintenance."""
    store = with_recorded_capabilities(open_store(destination, settings), settings, SystemClock())
    return DestinationLog(store, settings.near_calls)


def status_of(log: DestinationLog, failed: Mapping[str, Exception] | None = None) -> list[TableStatus]:
    """Return how far each table of a destination is.

    Args:
        log: Log of the destination.
        failed: Errors of an attempt to bring them up, by format.
    """
    tables = read_tables(log.store)
    if tables is None:
        return []
    turn = last_decided(log)
    return [_status(log.store, tables, name, turn, (failed or {}).get(name)) for name in _names(tables)]


def _names(tables: TablesRecord) -> list[str]:
    return [name for name in tables.formats if name in PROJECTIONS]


def _status(
    store: Store, tables: TablesRecord, name: str, turn: int, failed: Exception | None
) -> TableStatus:
    table, newest, detail = tables.formats[name], None, "" if failed is None else str(failed)
    try:
        with step("tables"):
            newest = projection(name).last_turn(store, tables)
    except LockgateError as error:
        detail = str(error)
    return TableStatus(
        format=name,
        enabled=table.enabled,
        first_turn=table.first_turn,
        turn=newest,
        behind=None if newest is None else max(0, turn - max(newest, table.first_turn - 1)),
        detail=detail,
    )


def catch_up(log: DestinationLog) -> list[TableStatus]:
    """Bring each enabled table up to the last decided turn; return how far each is."""
    return status_of(log, project(log.store, read_tables(log.store), last_decided(log), log.at_once))


def check_tables(log: DestinationLog) -> list[TableCheck]:
    """Compare each table with the log and the files of a destination."""
    tables = read_tables(log.store)
    if tables is None:
        return []
    present = {info.key for info in visible_files(log.store)}
    return [_check(log, tables, name, present) for name in _names(tables)]


def _check(log: DestinationLog, tables: TablesRecord, name: str, present: set[str]) -> TableCheck:
    made = projection(name)
    turn = None
    try:
        with step("tables"):
            turn = made.last_turn(log.store, tables)
            if not turn:
                return TableCheck(format=name, turn=None, detail="it has no version yet")
            seen = set(made.files(log.store, tables, turn))
            manifest: Manifest = log.manifest(turn)
    except LockgateError as error:
        return TableCheck(format=name, turn=turn, detail=str(error))
    return TableCheck(
        format=name,
        turn=turn,
        files=len(seen),
        rows=manifest.rows,
        missing=tuple(sorted(manifest.files.keys() - seen)[:SHOWN]),
        extra=tuple(sorted(seen - manifest.files.keys())[:SHOWN]),
        gone=tuple(sorted(seen - present)[:SHOWN]),
    )


def set_aside_foreign(log: DestinationLog, *, dry_run: bool) -> dict[str, list[str]]:
    """Copy the versions of other programs to `_lockgate/quarantine/`, and delete them; then catch up.

    The files that such a version names are not touched.

    Args:
        log: Log of the destination.
        dry_run: Only return them.

    Returns:
        Their keys, by format.

    Raises:
        PreconditionFailedError: Another process has changed one meanwhile; call again.
        OutcomeUnknownError: It is not known whether one was deleted; call again.
    """
    store, tables = log.store, read_tables(log.store)
    if tables is None:
        return {}
    found: dict[str, list[str]] = {}
    with step("tables"):
        for name in filter(tables.enabled.__contains__, _names(tables)):
            keys = projection(name).foreign_keys(store, tables)
            found[name] = [each for key in keys for each in (key, *_checksum(store, key))]
            for key in [] if dry_run else found[name]:
                version, data = store.head(key).version, store.get(key)
                with suppress(AlreadyExistsError):  # an earlier call has kept the same bytes
                    create(store, f"{QUARANTINE}{key}.{digest(data)[:16]}", data)
                store.delete(key, if_version=version if store.capabilities.conditional_delete else None)
    return found


def _checksum(store: Store, key: str) -> Iterator[str]:
    """Yield the file of Hadoop's checksum of a file, if it is there: it does not fit what takes the place."""
    folder, _, name = key.rpartition("/")
    with suppress(ObjectNotFoundError):
        yield store.head(f"{folder}/.{name}.crc").key


def footers(log: DestinationLog, turn: int, settings: Settings) -> dict[str, Statistics]:
    """Read the statistics of the files that are live after a turn from their footers, by key.

    Raises:
        InvalidInputError: A file is not Parquet.
        ObjectNotFoundError: A file is gone.
    """
    sizes = {file.key: file.size for file in log.manifest(turn).files.values()}
    other = next((key for key in sizes if not key.endswith(".parquet")), None)
    if other is not None:
        raise InvalidInputError(f"{log.store.url}: {other} is not Parquet, as files of tables are")
    read = partial(_footer, log.store)
    return dict(in_parallel(read, sizes.items(), settings.near_calls, settings.far_calls))


def _footer(store: Store, file: tuple[str, int]) -> tuple[str, Statistics]:
    key, size = file
    found = statistics_in_tail(store.get(key, start=max(0, size - TAIL_BYTES)), key)
    return key, {} if found is None else found[1]
