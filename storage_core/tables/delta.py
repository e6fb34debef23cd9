"""Delta: one version for each turn, `_delta_log/<turn - 1>.json`, with no library.

The first line of a version, `commitInfo`, has a header of ours, from which the next version is made: so a
version costs one small read and one create, whatever the length of the log.

The table has a writer feature of the name `lockgate`: other programs read it, and refuse to write it, as the
protocol of Delta demands of a feature that a writer does not know.

Source: Delta Transaction Log Protocol, "Actions" and "Per-file Statistics".
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from io import BytesIO
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

import msgspec

from lockgate.storage_core.commit.destination.log import CHECKPOINT_TURNS, DestinationLog
from lockgate.storage_core.commit.destination.projection import LOG as LOGGER
from lockgate.storage_core.commit.destination.projection import Statistics, TurnChange
from lockgate.storage_core.commit.records.log_records import LiveFile
from lockgate.storage_core.commit.records.table_records import TablesRecord
from lockgate.storage_core.decoding import convert, decode_json
from lockgate.storage_core.errors import InvalidInputError, ObjectNotFoundError
from lockgate.storage_core.printable import printable
from lockgate.storage_core.stores import Store
from lockgate.storage_core.tables.column_types import ColumnType, parse_value
from lockgate.storage_core.tables.delta_log import (
    FOLDER,
    LAST_CHECKPOINT,
    NUMBERED,
    Action,
    newest_checkpoint,
    reconciled,
    version_key,
    versions_from,
    write_checkpoint,
)
from lockgate.storage_core.tables.partitions import partition_values
from lockgate.storage_core.tables.versions import (
    TableColumns,
    TableProjection,
    columns_after,
    create_version,
    foreign,
)

FEATURE: Final = "lockgate"
"""Writer feature that other programs do not know."""
NTZ: Final = "timestampNtz"
ANOTHER: Final = "another program"
HEAD_BYTES: Final = 64 * 1024
"""Bytes of a version in which its first line is looked for; most are one of a few hundred bytes."""

_JSON: Final = msgspec.json.Encoder(decimal_format="number")


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """Lockgate's field of a version's `commitInfo`.

    Attributes:
        table: UUID of the table.
        turn: Turn of the version.
        columns: Columns after it; empty if none are known yet.
        partition_by: Partition columns.
        features: Reader features that the table has needed so far.
    """

    table: str
    turn: int
    job: str
    columns: tuple[tuple[str, str], ...] = ()
    partition_by: tuple[str, ...] = ()
    features: tuple[str, ...] = ()

    @property
    def table_columns(self) -> TableColumns | None:
        """Columns after the turn; None if none are known yet."""
        return TableColumns(self.columns, self.partition_by) if self.columns else None


def data_path(key: str) -> str:
    """Return the path of a file in Delta's actions: its key, percent-encoded once more than its folders."""
    return quote(key, safe="/=")


class Delta(TableProjection):
    """The projection into Delta; see `Projection`."""

    title = "Delta"
    folder = FOLDER

    def last_turn(self, store: Store, tables: TablesRecord) -> int:
        """Return the turn of the newest version; refuse one of another program."""
        hint = newest_checkpoint(store)
        # From the start if a hint beyond the log's end makes the log look empty.
        newest = max(versions_from(store, hint), default=-1)
        if newest < 0 < hint:
            newest = max(versions_from(store, 0), default=-1)
        return 0 if newest < 0 or self.version(store, tables, newest + 1) is None else newest + 1

    def files(self, store: Store, tables: TablesRecord, turn: int) -> Iterable[str]:
        """Return the keys of the files that a reader of a turn's version sees."""
        first = tables.formats["delta"].first_turn - 1
        actions = reconciled(store, turn - 1, first=first)
        return (unquote(action["add"]["path"]) for action in actions if "add" in action)

    def foreign_keys(self, store: Store, tables: TablesRecord) -> Sequence[str]:
        """Return the keys of versions that cannot be the log's, and of all after them, the newest first."""
        first = tables.formats["delta"].first_turn - 1
        listed = [info.key for page in store.pages(FOLDER) for info in page]
        turns = {int(found[1]) + 1 for key in listed if (found := NUMBERED.match(key))}
        good = self.first_foreign(store, tables, turns, first + 1) - 1
        bad = [key for key in listed if (found := NUMBERED.match(key)) and int(found[1]) >= good]
        hint = [LAST_CHECKPOINT] if newest_checkpoint(store) >= good else []
        return [*sorted(bad, reverse=True), *hint]

    def version(self, store: Store, tables: TablesRecord, turn: int) -> Header | None:
        """Return the header of a turn's version; None if there is none."""
        key = version_key(turn - 1)
        try:
            data = store.get(key, length=HEAD_BYTES)
            if b"\n" not in data:
                data = store.get(key)
        except ObjectNotFoundError:
            return None
        found = read_header(data)
        if found is None or (found.table, found.turn) != (tables.table_id, turn):
            raise foreign(store, key, writer_of(data))
        return found

    def write(self, store: Store, tables: TablesRecord, before: Any, change: TurnChange) -> None:
        """Write the version of a turn, unless it is there."""
        version = _version(DestinationLog(store), tables, before, change)
        data = BytesIO()
        data.writelines(_JSON.encode(action) + b"\n" for action in version.actions())
        is_base = change.is_first and change.turn > 1
        if is_base:  # a log that does not begin with version 0 begins with a checkpoint
            own = (action for action in version.actions() if "commitInfo" not in action)
            write_checkpoint(store, change.turn - 1, own)
        create_version(
            store,
            version_key(change.turn - 1),
            data.getvalue(),
            lambda found: _is_of(read_header(found), version.header),
            writer_of,
        )
        if not is_base and change.turn % CHECKPOINT_TURNS == 0:
            _keep_checkpoint(store, change.turn - 1, tables.formats["delta"].first_turn - 1)


DELTA: Final = Delta()


def _is_of(found: Header | None, own: Header) -> bool:
    return found is not None and (found.table, found.turn, found.job) == (own.table, own.turn, own.job)


def read_header(data: bytes) -> Header | None:
    """Return Lockgate's header of a version; None if another program wrote it."""
    try:
        first = decode_json(data.split(b"\n", 1)[0], dict[str, Any])
        return convert(first["commitInfo"][FEATURE], Header)
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError):
        return None


def writer_of(data: bytes) -> str:
    """Name the program that has written a version, as it gives itself in `commitInfo`."""
    for line in data.splitlines():
        with suppress(msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError):
            info = decode_json(line, dict[str, Any])["commitInfo"]
            names = (info.get("engineInfo") or info.get("clientVersion"), info.get("operation"))
            return printable(" ".join(str(name) for name in names if name)) or ANOTHER
    return ANOTHER


class _Version(NamedTuple):
    """A version, whose files are read again each time that its actions are.

    Attributes:
        header: Its header.
        head: The actions before those of files.
        change: What the turn changes.
        types: Types of the columns.
    """

    header: Header
    head: Sequence[Action]
    change: TurnChange
    types: Mapping[str, ColumnType]

    def actions(self) -> Iterator[Action]:
        """Yield its actions."""
        yield from self.head
        time_ms, rows_change = self.head[0]["commitInfo"]["timestamp"], self.change.rows_change
        for key in self.change.removed:
            remove = {"path": data_path(key), "deletionTimestamp": time_ms, "dataChange": rows_change}
            yield {"remove": remove}
        for file, statistics in self.change.added:
            add = {
                "path": data_path(file.key),
                "partitionValues": dict(partition_values(file.key)),
                "size": file.size,
                "modificationTime": time_ms,
                "dataChange": rows_change,
            }
            if (stats := _statistics(file, statistics, self.types)) is not None:
                add["stats"] = stats
            yield {"add": add}


def _version(
    log: DestinationLog, tables: TablesRecord, before: Header | None, change: TurnChange
) -> _Version:
    columns_before = None if before is None else before.table_columns
    columns = columns_after(columns_before, change)
    types = {} if columns is None else columns.parsed()
    features = set(() if before is None else before.features)
    if any(_has_ntz(kind) for kind in types.values()):
        features.add(NTZ)
    header = Header(
        table=tables.table_id,
        turn=change.turn,
        job=change.job_id,
        columns=() if columns is None else columns.types,
        partition_by=() if columns is None else columns.partition_by,
        features=tuple(sorted(features)),
    )
    time_ms = int(change.decided_s * 1000)
    head: list[Action] = [
        {
            "commitInfo": {
                "timestamp": time_ms,
                "operation": "WRITE" if change.verdict == "published" else f"TURN {change.verdict.upper()}",
                "operationParameters": {"mode": "Overwrite" if change.removed else "Append"},
                "isBlindAppend": not change.removed,
                "engineInfo": "Lockgate",
                "userMetadata": _JSON.encode({"turn": change.turn, "job": change.job_id}).decode(),
                FEATURE: msgspec.to_builtins(header),
            }
        },
        {"txn": {"appId": FEATURE, "version": change.turn, "lastUpdated": time_ms}},
    ]
    if columns is not None and columns != columns_before:
        if columns_before is not None and columns.partition_by != columns_before.partition_by:
            _refuse_other_folders(log, change, columns.partition_by)
        head += _schema_actions(columns, types, header.features, tables.table_id, time_ms)
    return _Version(header, head, change, types)


def _refuse_other_folders(log: DestinationLog, change: TurnChange, partition_by: tuple[str, ...]) -> None:
    """Refuse files with other partition columns beside live ones; this rare case reads the whole log."""
    for key in log.manifest(change.turn).files:
        if tuple(partition_values(key)) != partition_by:
            raise InvalidInputError(
                f"turn {change.turn} adds files with the partition columns "
                f"{', '.join(partition_by) or 'none'}, and {key} has others; a Delta table has "
                "one set of partition columns: replace the whole destination, or write to a new one"
            )


def _schema_actions(
    columns: TableColumns,
    types: Mapping[str, ColumnType],
    features: tuple[str, ...],
    table_id: str,
    time_ms: int,
) -> list[Action]:
    protocol: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": 7}
    if features:
        protocol |= {"minReaderVersion": 3, "readerFeatures": list(features)}
    protocol["writerFeatures"] = [FEATURE, *features]
    schema = _delta_type(ColumnType("struct", tuple(types.items())))
    return [
        {"protocol": protocol},
        {
            "metaData": {
                "id": table_id,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": _JSON.encode(schema).decode(),
                "partitionColumns": list(columns.partition_by),
                "configuration": {},
                "createdTime": time_ms,
            }
        },
    ]


def _delta_type(kind: ColumnType) -> Any:
    parts = [_delta_type(child) for _, child in kind.children]
    match kind.name:
        case "decimal":
            return f"decimal({kind.precision},{kind.scale})"
        case "array":
            return {"type": "array", "elementType": parts[0], "containsNull": True}
        case "map":
            return {"type": "map", "keyType": parts[0], "valueType": parts[1], "valueContainsNull": True}
        case "struct":
            names = (name for name, _ in kind.children)
            fields = [
                {"name": name, "type": part, "nullable": True, "metadata": {}}
                for name, part in zip(names, parts, strict=True)
            ]
            return {"type": "struct", "fields": fields}
        case name:
            return name


def _has_ntz(kind: ColumnType) -> bool:
    return kind.name == "timestamp_ntz" or any(_has_ntz(child) for _, child in kind.children)


def _statistics(file: LiveFile, statistics: Statistics, types: Mapping[str, ColumnType]) -> str | None:
    """Return a file's statistics; None if its rows are not known."""
    if file.rows is None:
        return None
    found: dict[str, dict[str, Any]] = {"minValues": {}, "maxValues": {}, "nullCount": {}}
    for name, column in statistics.items():
        kind = types.get(name)
        if kind is None or column.nulls is None:
            continue
        found["nullCount"][name] = column.nulls
        for bound, text, up in (("minValues", column.minimum, False), ("maxValues", column.maximum, True)):
            value = None if text is None else _bound(kind, text, up=up)
            if value is not None:
                found[bound][name] = value
    return _JSON.encode({"numRecords": file.rows, **found}).decode()


def _bound(kind: ColumnType, text: str, *, up: bool) -> Any:
    """Return a minimum or maximum as Delta writes it; None if it is left out."""
    if kind.children or kind.name in {"binary", "boolean"}:
        return None
    with suppress(ValueError, OverflowError):  # the end of the year 9999 cannot be rounded up
        match parse_value(kind, text):
            case float() as value:
                # Footers ignore NaN, which readers of Delta take for the greatest number.
                return None if up or not math.isfinite(value) else value
            case dt.datetime() as value:
                return _milliseconds(value, up=up) + ("Z" if kind.name == "timestamp" else "")
            case dt.date() as value:
                return value.isoformat()
            case value:
                return value
    return None


def _milliseconds(value: dt.datetime, *, up: bool) -> str:
    """Return a timestamp in milliseconds, as Delta has them, rounded away from the values between."""
    rest = value.microsecond % 1000
    whole = value - dt.timedelta(microseconds=rest)
    if up and rest:
        whole += dt.timedelta(milliseconds=1)
    return whole.isoformat(timespec="milliseconds")


def _keep_checkpoint(store: Store, version: int, first: int) -> None:
    """Write the checkpoint of a version; without it readers only take longer."""
    try:
        write_checkpoint(store, version, reconciled(store, version, first=first))
    except Exception as error:  # noqa: BLE001 - the next one has all of it
        LOGGER.warning("%s has no Delta checkpoint of version %d: %s", store.url, version, error)
