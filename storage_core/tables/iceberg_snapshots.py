"""Which manifests the snapshot of a turn has: those of the one before it, but what the turn removes.

Manifests are reused, and ten of a size are merged, so a turn writes what it adds.

Source: Iceberg Table Spec, "Snapshots" and "Manifests".
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from typing import Final

import msgspec

from lockgate.storage_core.commit.destination.projection import Statistics, TurnChange
from lockgate.storage_core.commit.records.log_records import LiveFile
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.stores import Store
from lockgate.storage_core.tables.column_types import ColumnType, parse_type
from lockgate.storage_core.tables.iceberg_manifests import (
    ADDED,
    DELETED,
    EXISTING,
    Entry,
    Manifest,
    PartitionField,
    avro_name,
    bound,
    from_bytes,
    plain_value,
    read_avro,
    root_of,
    write_manifest,
)
from lockgate.storage_core.tables.iceberg_schema import FieldIds, Metadata, schema_of, spec_of
from lockgate.storage_core.tables.partitions import partition_values
from lockgate.storage_core.tables.versions import TableColumns

MERGED_MANIFESTS: Final = 10
LARGE_MANIFEST: Final = 10_000
"""Files of a manifest at most, which bounds memory; one with so many is merged no more."""


def manifests_of(store: Store, metadata: Metadata) -> list[Manifest]:
    """Return the manifests of the current snapshot."""
    current = metadata["current-snapshot-id"]
    lists = {each["snapshot-id"]: each["manifest-list"] for each in metadata["snapshots"]}
    return read_avro(store, lists[current]) if current in lists else []


def live_entries(store: Store, manifest: Manifest) -> Iterator[Entry]:
    """Yield the entries of a manifest's live files."""
    for entry in read_avro(store, manifest["manifest_path"]):
        if entry["status"] != DELETED:
            yield entry


@dataclass(frozen=True)
class SnapshotFiles:
    """The manifests of a turn's snapshot.

    Attributes:
        store: Store of the destination.
        metadata: The table's metadata, with the columns of the turn.
        columns: These columns.
        change: What the turn changes.
        added: Sums over the files that the turn adds, as a summary has them, once the manifests are written.
        removed: The same of those that it removes.
    """

    store: Store
    metadata: Metadata
    columns: TableColumns | None
    change: TurnChange
    added: Counter[str] = field(init=False, default_factory=Counter)
    removed: Counter[str] = field(init=False, default_factory=Counter)

    def manifests(self, before: Iterable[Manifest]) -> list[Manifest]:
        """Write the manifests that are new, and return all of the snapshot."""
        kept = list(self._without_removed(before))
        added = map(self._added, self.change.added)
        return self._merged([*kept, *self._written(self.metadata["default-spec-id"], added)])

    @cached_property
    def _fields(self) -> dict[str, tuple[int, ColumnType]]:
        """Id and type of each column."""
        ids = FieldIds(self.metadata).known
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
            for field in spec_of(self.metadata, spec_id)["fields"]
        ]

    def _written(self, spec_id: int, entries: Iterable[Entry]) -> Iterator[Manifest]:
        rest = iter(entries)
        pages = ([first, *islice(rest, LARGE_MANIFEST - 1)] for first in rest)
        return map(partial(self._write, spec_id), pages)  # which keeps no page while the next one is made

    def _write(self, spec_id: int, entries: list[Entry]) -> Manifest:
        schema = msgspec.json.encode(schema_of(self.metadata)).decode()
        partition = self._partition(spec_id)
        turn = self.change.turn
        return write_manifest(self.store, turn, entries, spec_id=spec_id, partition=partition, schema=schema)

    def _added(self, added: tuple[LiveFile, Statistics]) -> Entry:
        file, statistics = added
        if file.rows is None:
            raise InvalidInputError(f"turn {self.change.turn}: the rows of {file.key} are not known")
        texts = partition_values(file.key)
        partition = {}
        for own in self._own_partition:
            text = texts[own.name]
            try:
                value = None if text is None else plain_value(own.kind, text)
            except ValueError as error:
                raise InvalidInputError(f"turn {self.change.turn}: folder of {file.key}: {error}") from None
            partition[avro_name(own.name)] = value
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
        data_file = {
            "content": 0,
            "file_path": f"{root_of(self.store)}/{file.key}",
            "file_format": "PARQUET",
            "partition": partition,
            "record_count": file.rows,
            "file_size_in_bytes": file.size,
            "null_value_counts": nulls,
            "lower_bounds": bounds[False],
            "upper_bounds": bounds[True],
        }
        _count(self.added, data_file)
        return _entry(ADDED, self.change.turn, self.change.turn, data_file)

    def _without_removed(self, before: Iterable[Manifest]) -> Iterator[Manifest]:
        """Yield the manifests without the files that the turn removes; few manifests are read."""
        wanted = {f"{root_of(self.store)}/{key}" for key in self.change.removed}
        partitions = {tuple(partition_values(key).items()) for key in self.change.removed}
        for manifest in before:
            if not manifest["added_files_count"] + manifest["existing_files_count"]:
                continue  # an earlier snapshot has removed all its files
            if not self._may_have(manifest, map(dict, partitions)):
                yield manifest
                continue
            entries = list(_materialized(self.store, manifest))
            gone = [entry for entry in entries if entry["data_file"]["file_path"] in wanted]
            for entry in gone:
                _count(self.removed, entry["data_file"])
                entry |= {"status": DELETED, "snapshot_id": self.change.turn}
            yield self._write(manifest["partition_spec_id"], entries) if gone else manifest

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
            entries = (entry for each in levels[full] for entry in _materialized(self.store, each))
            own = (
                {**entry, "status": ADDED} if entry["snapshot_id"] == self.change.turn else entry
                for entry in entries
            )
            rest = [manifest for manifest in manifests if manifest not in levels[full]]
            manifests = [*rest, *self._written(full[0], own)]


def _count(sums: Counter[str], data_file: Entry) -> None:
    size, rows = data_file["file_size_in_bytes"], data_file["record_count"]
    sums.update({"data-files": 1, "records": rows, "files-size": size})


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
    for entry in live_entries(store, manifest):
        yield _entry(EXISTING, entry["snapshot_id"], entry["sequence_number"], entry["data_file"])


def _entry(status: int, snapshot_id: int, sequence_number: int, data_file: Entry) -> Entry:
    return {
        "status": status,
        "snapshot_id": snapshot_id,
        "sequence_number": sequence_number,
        "file_sequence_number": sequence_number,
        "data_file": data_file,
    }
