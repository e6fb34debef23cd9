"""Iceberg: one metadata file for each turn, `_iceberg/metadata/v<turn>.metadata.json`, and no catalogue.

Data files stay where they are, as plain Parquet without field ids: readers find columns by the name mapping,
and partition columns in the partition data. A metadata file is made from the one before it; manifests are
reused, and ten of a size are merged, so a turn writes what it adds.

Source: Iceberg Table Spec, version 2.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import msgspec

from lockgate.storage_core.commit.destination.projection import Statistics, TurnChange
from lockgate.storage_core.commit.records.log_records import LiveFile
from lockgate.storage_core.commit.records.table_records import TablesRecord
from lockgate.storage_core.decoding import decode_json
from lockgate.storage_core.errors import ConflictError, InvalidInputError, ObjectNotFoundError
from lockgate.storage_core.printable import printable
from lockgate.storage_core.stores import Store
from lockgate.storage_core.tables.column_types import ColumnType, parse_type
from lockgate.storage_core.tables.iceberg_manifests import (
    ADDED,
    DELETED,
    EXISTING,
    FOLDER,
    Entry,
    Manifest,
    PartitionField,
    avro_name,
    bound,
    from_bytes,
    iceberg_type,
    plain_value,
    read_avro,
    root_of,
    write_list,
    write_manifest,
)
from lockgate.storage_core.tables.partitions import partition_values
from lockgate.storage_core.tables.versions import (
    TableColumns,
    TableProjection,
    columns_after,
    create_version,
    foreign,
)

HINT: Final = f"{FOLDER}version-hint.text"
KEPT_SNAPSHOTS: Final = 20
"""Snapshots in a metadata file. An older one is the current snapshot of its turn's own metadata file."""
MERGED_MANIFESTS: Final = 10
NO_EXPIRY: Final = "gc.enabled"
"""Property by which engines that expire snapshots or delete orphans refuse it: the history rule decides."""
LARGE_MANIFEST: Final = 10_000
"""Files of a manifest that is merged no more."""

_VERSION: Final = re.compile(rf"{FOLDER}v([1-9][0-9]*)\.metadata\.json")
_WIDER: Final = {("int", "long"), ("float", "double")}
Metadata = dict[str, Any]
Path = tuple[str, ...]


def metadata_key(turn: int) -> str:
    """Return the key of the metadata of a turn."""
    return f"{FOLDER}v{turn}.metadata.json"


class Iceberg(TableProjection):
    """The projection into Iceberg; see `Projection`."""

    title = "Iceberg"
    folder = "_iceberg/"

    def last_turn(self, store: Store, tables: TablesRecord) -> int:
        """Return the turn of the newest metadata; refuse those of another program."""
        turn = read_hint(store)
        if not turn or self.version(store, tables, turn) is None:
            turn = max(_listed(store), default=0)
        while turn and _exists(store, metadata_key(turn + 1)):
            turn += 1
        return 0 if not turn or self.version(store, tables, turn) is None else turn

    def files(self, store: Store, tables: TablesRecord, turn: int) -> Iterable[str]:
        """Return the keys of the files that a reader of a turn's snapshot sees."""
        metadata = self.version(store, tables, turn)
        if metadata is None:
            raise ObjectNotFoundError(f"{store.url}/{metadata_key(turn)} is gone")
        for manifest in _manifests(store, metadata):
            for entry in _live(store, manifest):
                yield entry["data_file"]["file_path"].removeprefix(f"{root_of(store)}/")

    def foreign_keys(self, store: Store, tables: TablesRecord) -> Sequence[str]:
        """Return the keys of metadata that cannot be the log's, and of all after them, the newest first."""
        turns = set(_listed(store))
        good = self.first_foreign(store, tables, turns, tables.formats["iceberg"].first_turn)
        bad = [metadata_key(turn) for turn in sorted(turns, reverse=True) if turn >= good]
        return [*bad, *([HINT] if bad or read_hint(store) >= good else [])]

    def version(self, store: Store, tables: TablesRecord, turn: int) -> Metadata | None:
        """Return the metadata of a turn; None if there are none."""
        try:
            data = store.get(metadata_key(turn))
        except ObjectNotFoundError:
            return None
        if not _is_of(data, tables, turn):
            raise foreign(store, metadata_key(turn), writer_of(data))
        found = decode_json(data, Metadata)
        if found["location"] != _location(store):
            raise ConflictError(
                f"{store.url}: its Iceberg table names files at {found['location']}, and the destination was "
                "moved; nothing was changed; delete _iceberg/ and `lockgate tables repair` writes it again"
            )
        return found

    def write(self, store: Store, tables: TablesRecord, before: Any, change: TurnChange) -> None:
        """Write the metadata of a turn, unless they are there."""
        data = msgspec.json.encode(_metadata(store, tables, before, change))
        create_version(
            store,
            metadata_key(change.turn),
            data,
            lambda found: _is_of(found, tables, change.turn),
            writer_of,
        )
        if read_hint(store) < change.turn:
            store.put(HINT, str(change.turn).encode())  # behind for a moment if two do so, never ahead


ICEBERG: Final = Iceberg()


def _location(store: Store) -> str:
    return f"{root_of(store)}/_iceberg"


def read_hint(store: Store) -> int:
    """Return the turn in the hint of the newest metadata; 0 if there is none."""
    try:
        return int(store.get(HINT))
    except (ObjectNotFoundError, ValueError):
        return 0


def _exists(store: Store, key: str) -> bool:
    try:
        store.head(key)
    except ObjectNotFoundError:
        return False
    return True


def _listed(store: Store) -> Iterator[int]:
    for page in store.pages(f"{FOLDER}v"):
        for info in page:
            if found := _VERSION.fullmatch(info.key):
                yield int(found[1])


def _is_of(data: bytes, tables: TablesRecord, turn: int) -> bool:
    """Return whether metadata are a turn's: those of another program name the turn before them."""
    with suppress(msgspec.DecodeError, UnicodeDecodeError, AttributeError):
        found = decode_json(data, Metadata)
        own = found.get("properties", {}).get("lockgate.turn")
        return (found.get("table-uuid"), own) == (tables.table_id, str(turn))
    return False


def writer_of(data: bytes) -> str:
    """Name the program that has written metadata, as their newest snapshot does."""
    with suppress(msgspec.DecodeError, UnicodeDecodeError, KeyError, IndexError, AttributeError):
        summary = decode_json(data, Metadata)["snapshots"][-1]["summary"]
        names = (summary.get("engine-name"), summary.get("iceberg-version"), summary.get("operation"))
        return printable(f"another program ({', '.join(str(name) for name in names if name)})")
    return "another program"


def _manifests(store: Store, metadata: Metadata) -> list[Manifest]:
    current = metadata["current-snapshot-id"]
    lists = {each["snapshot-id"]: each["manifest-list"] for each in metadata["snapshots"]}
    return read_avro(store, lists[current]) if current in lists else []


def _live(store: Store, manifest: Manifest) -> Iterator[Entry]:
    """Yield the entries of a manifest's live files."""
    for entry in read_avro(store, manifest["manifest_path"]):
        if entry["status"] != DELETED:
            yield entry


def _schema(metadata: Metadata) -> Metadata:
    """Return the current schema."""
    current = metadata["current-schema-id"]
    (found,) = (schema for schema in metadata["schemas"] if schema["schema-id"] == current)
    return dict(found)


class _FieldIds:
    """Ids of columns and nested fields by their names: a name has one id for ever."""

    def __init__(self, metadata: Metadata) -> None:
        self.known: dict[Path, tuple[int, Any]] = {}
        self.last = metadata["last-column-id"]
        for schema in metadata["schemas"]:
            self._learn((), schema)

    def _learn(self, path: Path, kind: Any) -> None:
        for name, field_id, child in _children(kind):
            self.known[(*path, name)] = (field_id, child)
            self._learn((*path, name), child)

    def typed(self, path: Path, kind: ColumnType) -> tuple[int, Any]:
        """Return the id and the type of a field, as a schema has them.

        Raises:
            InvalidInputError: It had a type that Iceberg cannot widen to this one.
        """
        field_id, old = self.known.get(path, (0, None))
        if not field_id:
            self.last += 1
            field_id = self.last
        new = self.type_of(path, kind)
        if old is not None and not _may_become(old, new):
            raise InvalidInputError(
                f"column {'.'.join(path)!r}: an Iceberg table cannot widen {old} to {new}; replace the "
                "destination, or write the column under another name"
            )
        self.known[path] = (field_id, new)
        return field_id, new

    def type_of(self, path: Path, kind: ColumnType) -> Any:
        if not kind.children:
            return iceberg_type(kind)
        parts = [(name, *self.typed((*path, name), child)) for name, child in kind.children]
        if kind.name == "struct":
            return {"type": "struct", "fields": [_column(*part) for part in parts]}
        made: Metadata = {"type": "list" if kind.name == "array" else kind.name}
        for name, field_id, part in parts:
            made |= {f"{name}-id": field_id, name: part}
            if name != "key":
                made[f"{name}-required"] = False
        return made


def _column(name: str, field_id: int, kind: Any) -> Metadata:
    return {"id": field_id, "name": name, "required": False, "type": kind}


def _children(kind: Any) -> Iterator[tuple[str, int, Any]]:
    """Yield name, id and type of a type's fields, as a schema has them."""
    if isinstance(kind, dict):
        for field in kind.get("fields", ()):
            yield field["name"], field["id"], field["type"]
        for name in ("element", "key", "value"):
            if name in kind:
                yield name, kind[f"{name}-id"], kind[name]


def _may_become(old: Any, new: Any) -> bool:
    if isinstance(old, dict) or isinstance(new, dict):
        return isinstance(old, dict) and isinstance(new, dict) and old["type"] == new["type"]
    if old.startswith("decimal") and new.startswith("decimal"):
        (before, scale), (after, same) = (kind[8:-1].split(", ") for kind in (old, new))
        return scale == same and int(before) <= int(after)
    return old == new or (old, new) in _WIDER


def _name_mapping(ids: _FieldIds) -> str:
    """Return by which names readers find fields in files without ids, also dropped ones."""
    fields: list[Metadata] = []
    nested: dict[Path, list[Metadata]] = {(): fields}
    for path, (field_id, _) in sorted(ids.known.items(), key=lambda item: (len(item[0]), item[1][0])):
        _, parent = ids.known.get(path[:-1], (0, None))
        names = ["element", "item"] if isinstance(parent, dict) and "element-id" in parent else [path[-1]]
        mapped: Metadata = {"field-id": field_id, "names": names}
        nested[path[:-1]].append(mapped)
        nested[path] = mapped["fields"] = []
    return msgspec.json.encode(fields).decode()


def _empty(tables: TablesRecord, location: str) -> Metadata:
    return {
        "format-version": 2,
        "table-uuid": tables.table_id,
        "location": location,
        "last-sequence-number": 0,
        "last-updated-ms": 0,
        "last-column-id": 0,
        "current-schema-id": 0,
        "schemas": [{"type": "struct", "schema-id": 0, "fields": []}],
        "default-spec-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "last-partition-id": 999,
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "properties": {},
        "current-snapshot-id": -1,
        "snapshots": [],
        "snapshot-log": [],
        "metadata-log": [],
        "refs": {},
    }


def _columns_of(metadata: Metadata) -> TableColumns | None:
    """Return the columns as jobs recorded them, which have more types than Iceberg."""
    properties = metadata["properties"]
    if "lockgate.columns" not in properties:
        return None
    types = decode_json(properties["lockgate.columns"].encode(), tuple[tuple[str, str], ...])
    fields = _spec(metadata, metadata["default-spec-id"])["fields"]
    return TableColumns(types, tuple(field["name"] for field in fields))


def _spec(metadata: Metadata, spec_id: int) -> Metadata:
    (found,) = (spec for spec in metadata["partition-specs"] if spec["spec-id"] == spec_id)
    return dict(found)


def _with_columns(base: Metadata, columns: TableColumns) -> Metadata:
    """Return metadata with these columns as the current schema, and their partition spec."""
    ids = _FieldIds(base)
    fields = [_column(name, *ids.typed((name,), kind)) for name, kind in columns.parsed().items()]
    schemas, specs = list(base["schemas"]), list(base["partition-specs"])
    schema_id = next((each["schema-id"] for each in schemas if each["fields"] == fields), None)
    if schema_id is None:
        schema_id = len(schemas)
        schemas.append({"type": "struct", "schema-id": schema_id, "fields": fields})
    known = {field["source-id"]: field["field-id"] for spec in specs for field in spec["fields"]}
    last = base["last-partition-id"]
    partition = []
    for name in columns.partition_by:
        source_id = ids.known[(name,)][0]
        last += source_id not in known
        own = known.setdefault(source_id, last)
        partition.append({"source-id": source_id, "field-id": own, "name": name, "transform": "identity"})
    spec_id = next((each["spec-id"] for each in specs if each["fields"] == partition), None)
    if spec_id is None:
        spec_id = len(specs)
        specs.append({"spec-id": spec_id, "fields": partition})
    recorded = msgspec.json.encode(columns.types).decode()
    own_properties = {"schema.name-mapping.default": _name_mapping(ids), "lockgate.columns": recorded}
    return {
        **base,
        "last-column-id": ids.last,
        "current-schema-id": schema_id,
        "schemas": schemas,
        "default-spec-id": spec_id,
        "partition-specs": specs,
        "last-partition-id": last,
        "properties": {**base["properties"], **own_properties},
    }


def _metadata(store: Store, tables: TablesRecord, before: Metadata | None, change: TurnChange) -> Metadata:
    """Return the metadata of a turn, after its manifests are written."""
    base = before or _empty(tables, _location(store))
    columns = columns_after(_columns_of(base), change)
    made = base if columns is None or columns == _columns_of(base) else _with_columns(base, columns)
    own = {"lockgate.turn": str(change.turn), "lockgate.job": change.job_id}
    properties = {**made["properties"], **own, NO_EXPIRY: "false"}
    time_ms = max(int(change.decided_s * 1000), base["last-updated-ms"])
    made = {**made, "last-updated-ms": time_ms, "properties": properties}
    if not change.added and not change.removed:
        return made
    manifests, removed = _SnapshotFiles(store, made, columns, change).manifests(_manifests(store, base))
    parent = base["current-snapshot-id"]
    summary = _summary(base, change, removed)
    snapshot = {
        "snapshot-id": change.turn,
        **({"parent-snapshot-id": parent} if parent > 0 else {}),
        "sequence-number": change.turn,
        "timestamp-ms": time_ms,
        "manifest-list": write_list(store, change.turn, manifests, parent if parent > 0 else None),
        "schema-id": made["current-schema-id"],
        "summary": {**summary, **own},
    }
    entry = {"snapshot-id": change.turn, "timestamp-ms": time_ms}
    return {
        **made,
        "last-sequence-number": change.turn,
        "current-snapshot-id": change.turn,
        "snapshots": [*base["snapshots"], snapshot][-KEPT_SNAPSHOTS:],
        "snapshot-log": [*base["snapshot-log"], entry][-KEPT_SNAPSHOTS:],
        "refs": {"main": {"snapshot-id": change.turn, "type": "branch"}},
    }


def _summary(base: Metadata, change: TurnChange, removed: list[Entry]) -> dict[str, str]:
    operation = "append" if not removed else "overwrite" if change.added else "delete"
    before = base["snapshots"][-1]["summary"] if base["snapshots"] else {}
    added = [file for file, _ in change.added]
    counts = {
        "data-files": (len(added), len(removed)),
        "records": (sum(file.rows or 0 for file in added), sum(entry["record_count"] for entry in removed)),
        "files-size": (
            sum(file.size for file in added),
            sum(entry["file_size_in_bytes"] for entry in removed),
        ),
    }
    found = {"operation": operation if change.rows_change else "replace"}
    for name, (more, less) in counts.items():
        found[f"added-{name}"], found[f"deleted-{name}"] = str(more), str(less)
        found[f"total-{name}"] = str(int(before.get(f"total-{name}", 0)) + more - less)
    return found


@dataclass(frozen=True)
class _SnapshotFiles:
    """The manifests of a turn's snapshot.

    Attributes:
        metadata: The table's metadata, with the columns of the turn.
        columns: These columns.
    """

    store: Store
    metadata: Metadata
    columns: TableColumns | None
    change: TurnChange

    def manifests(self, before: list[Manifest]) -> tuple[list[Manifest], list[Entry]]:
        """Return the manifests of the snapshot, and the files that it removes."""
        kept, removed = self._without_removed(before)
        if self.change.added:
            kept.append(
                self._write(self.metadata["default-spec-id"], list(map(self._added, self.change.added)))
            )
        return self._merged(kept), removed

    @cached_property
    def _fields(self) -> dict[str, tuple[int, ColumnType]]:
        """Id and type of each column."""
        ids = _FieldIds(self.metadata).known
        types = {} if self.columns is None else self.columns.parsed()
        return {name: (ids[(name,)][0], kind) for name, kind in types.items()}

    @cached_property
    def _own_partition(self) -> list[PartitionField]:
        return self._partition(self.metadata["default-spec-id"])

    def _partition(self, spec_id: int) -> list[PartitionField]:
        schemas = (schema["fields"] for schema in self.metadata["schemas"])
        types = {field["id"]: field["type"] for fields in schemas for field in fields}
        return [
            PartitionField(
                field["source-id"],
                field["field-id"],
                field["name"],
                _flat_type(field["name"], types[field["source-id"]]),
            )
            for field in _spec(self.metadata, spec_id)["fields"]
        ]

    def _write(self, spec_id: int, entries: list[Entry]) -> Manifest:
        schema = msgspec.json.encode(_schema(self.metadata)).decode()
        partition = self._partition(spec_id)
        turn = self.change.turn
        return write_manifest(self.store, turn, entries, spec_id=spec_id, partition=partition, schema=schema)

    def _added(self, added: tuple[LiveFile, Statistics]) -> Entry:
        file, statistics = added
        if file.rows is None:
            raise InvalidInputError(f"turn {self.change.turn}: the rows of {file.key} are not known")
        texts = partition_values(file.key)
        partition = {}
        for field in self._own_partition:
            text = texts[field.name]
            try:
                value = None if text is None else plain_value(field.kind, text)
            except ValueError as error:
                raise InvalidInputError(f"turn {self.change.turn}: folder of {file.key}: {error}") from None
            partition[avro_name(field.name)] = value
        fields = self._fields
        known = [(*fields[name], each) for name, each in statistics.items() if name in fields]
        nulls = [
            {"key": field_id, "value": each.nulls} for field_id, _, each in known if each.nulls is not None
        ]
        bounds: dict[bool, list[Entry]] = {False: [], True: []}
        for field_id, kind, each in known:
            for upper, text in ((False, each.minimum), (True, each.maximum)):
                if (value := bound(kind, text, upper=upper)) is not None:
                    bounds[upper].append({"key": field_id, "value": value})
        return _entry(
            ADDED,
            self.change.turn,
            self.change.turn,
            {
                "content": 0,
                "file_path": f"{root_of(self.store)}/{file.key}",
                "file_format": "PARQUET",
                "partition": partition,
                "record_count": file.rows,
                "file_size_in_bytes": file.size,
                "null_value_counts": nulls,
                "lower_bounds": bounds[False],
                "upper_bounds": bounds[True],
            },
        )

    def _without_removed(self, before: list[Manifest]) -> tuple[list[Manifest], list[Entry]]:
        """Return the manifests without the files that the turn removes, and these; few manifests are read."""
        wanted = {f"{root_of(self.store)}/{key}" for key in self.change.removed}
        partitions = {tuple(partition_values(key).items()) for key in self.change.removed}
        kept, removed = [], []
        for manifest in before:
            if not manifest["added_files_count"] + manifest["existing_files_count"]:
                continue  # an earlier snapshot has removed all its files
            if not self._may_have(manifest, map(dict, partitions)):
                kept.append(manifest)
                continue
            entries = list(_materialized(self.store, manifest))
            gone = [entry for entry in entries if entry["data_file"]["file_path"] in wanted]
            if not gone:
                kept.append(manifest)
                continue
            removed += [entry["data_file"] for entry in gone]
            for entry in gone:
                entry |= {"status": DELETED, "snapshot_id": self.change.turn}
            kept.append(self._write(manifest["partition_spec_id"], entries))
        return kept, removed

    def _may_have(self, manifest: Manifest, wanted: Iterable[Mapping[str, str | None]]) -> bool:
        """Return whether the partitions of a manifest may include one of these."""
        fields = self._partition(manifest["partition_spec_id"])
        ranges = [
            (field, each["contains_null"], each["lower_bound"], each["upper_bound"])
            for field, each in zip(fields, manifest["partitions"] or (), strict=True)
        ]
        return any(all(_is_within(values, *each) for each in ranges) for values in wanted)

    def _merged(self, manifests: list[Manifest]) -> list[Manifest]:
        """Merge manifests while ten have about as many files."""
        while True:
            levels = defaultdict(list)
            for manifest in manifests:
                files = manifest["added_files_count"] + manifest["existing_files_count"]
                is_needed = (
                    manifest["deleted_files_count"] and manifest["added_snapshot_id"] == self.change.turn
                )
                if files < LARGE_MANIFEST and not is_needed:
                    levels[manifest["partition_spec_id"], len(str(files))].append(manifest)
            full = next(
                (level for level, each in sorted(levels.items()) if len(each) >= MERGED_MANIFESTS), None
            )
            if full is None:
                return manifests
            entries = [entry for each in levels[full] for entry in _materialized(self.store, each)]
            own = [
                {**entry, "status": ADDED} if entry["snapshot_id"] == self.change.turn else entry
                for entry in entries
            ]
            rest = [manifest for manifest in manifests if manifest not in levels[full]]
            manifests = [*rest, self._write(full[0], own)]


def _flat_type(name: str, text: str) -> ColumnType:
    spark = {"timestamptz": "timestamp", "timestamp": "timestamp_ntz"}
    return parse_type(name, spark.get(text, text))


def _is_within(
    values: Mapping[str, str | None],
    field: PartitionField,
    has_null: bool,
    low: bytes | None,
    high: bytes | None,
) -> bool:
    text = values.get(field.name)
    if text is None:
        return has_null
    with suppress(ValueError):
        value = plain_value(field.kind, text)
        if low is None or high is None:
            return False
        return bool(from_bytes(field.kind, low) <= value <= from_bytes(field.kind, high))
    return True


def _materialized(store: Store, manifest: Manifest) -> Iterator[Entry]:
    """Yield a manifest's live entries as an entry of another manifest has them."""
    for entry in _live(store, manifest):
        yield _entry(EXISTING, entry["snapshot_id"], entry["sequence_number"], entry["data_file"])


def _entry(status: int, snapshot_id: int, sequence_number: int, data_file: Entry) -> Entry:
    return {
        "status": status,
        "snapshot_id": snapshot_id,
        "sequence_number": sequence_number,
        "file_sequence_number": sequence_number,
        "data_file": data_file,
    }
