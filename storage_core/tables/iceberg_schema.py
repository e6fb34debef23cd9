"""Columns of an Iceberg table: schemas, the ids of fields, the name mapping, and partition specs.

Data files are plain Parquet without ids: readers find their columns by the name mapping.

Source: Iceberg Table Spec, "Schemas", "Schema Evolution" and "Column Projection".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from lockgate.storage_core.decoding import decode_json
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.tables.column_types import ColumnType
from lockgate.storage_core.tables.iceberg_manifests import iceberg_type
from lockgate.storage_core.tables.versions import TableColumns

_WIDER: Final = {("int", "long"), ("float", "double")}
Metadata = dict[str, Any]
Path = tuple[str, ...]


def schema_of(metadata: Metadata) -> Metadata:
    """Return the current schema."""
    current = metadata["current-schema-id"]
    (found,) = (schema for schema in metadata["schemas"] if schema["schema-id"] == current)
    return dict(found)


class FieldIds:
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
        """Return the type of a field, and give its parts ids."""
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


def _name_mapping(ids: FieldIds) -> str:
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


def columns_of(metadata: Metadata) -> TableColumns | None:
    """Return the columns as jobs recorded them, which have more types than Iceberg."""
    properties = metadata["properties"]
    if "lockgate.columns" not in properties:
        return None
    types = decode_json(properties["lockgate.columns"].encode(), tuple[tuple[str, str], ...])
    fields = spec_of(metadata, metadata["default-spec-id"])["fields"]
    return TableColumns(types, tuple(field["name"] for field in fields))


def spec_of(metadata: Metadata, spec_id: int) -> Metadata:
    """Return a partition spec."""
    (found,) = (spec for spec in metadata["partition-specs"] if spec["spec-id"] == spec_id)
    return dict(found)


def with_columns(base: Metadata, columns: TableColumns) -> Metadata:
    """Return metadata with these columns as the current schema, and their partition spec."""
    ids = FieldIds(base)
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
