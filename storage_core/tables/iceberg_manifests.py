"""Manifests and manifest lists of an Iceberg table: which files a snapshot has, with partitions and bounds.

Their names contain a digest of their bytes, so two processes that write the same one agree.

Source: Iceberg Table Spec, "Manifests", "Manifest Lists" and "Appendix D: Single-value serialization".
"""

from __future__ import annotations

import datetime as dt
import hashlib
import math
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from decimal import Context, Decimal
from io import BytesIO
from typing import Any, Final, NamedTuple

import msgspec

from lockgate.storage_core.commit.records.create_if_absent import create
from lockgate.storage_core.errors import AlreadyExistsError, MalformedRecordError, MissingPartError
from lockgate.storage_core.stores import Store
from lockgate.storage_core.tables.column_types import ColumnType, parse_value

FOLDER: Final = "_iceberg/metadata/"
EXISTING, ADDED, DELETED = 0, 1, 2
"""Status of a manifest's entry."""
Entry = dict[str, Any]
Manifest = dict[str, Any]
"""Record of a manifest list."""

NAMES: Final = {
    "byte": "int", "short": "int", "integer": "int", "long": "long", "float": "float", "double": "double",
    "boolean": "boolean", "string": "string", "binary": "binary", "date": "date", "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
}  # fmt: skip
"""Iceberg's names of flat types."""
_AVRO: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("int", "long", "float", "double", "boolean", "string"), None),
    "binary": "bytes",
    "date": {"type": "int", "logicalType": "date"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": False},
    "timestamptz": {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True},
}
_PACKED: Final = {
    "int": "<i", "date": "<i", "long": "<q", "timestamp": "<q", "timestamptz": "<q", "float": "<f",
    "double": "<d", "boolean": "<?",
}  # fmt: skip
_EXACT: Final = Context(prec=100)
"""Python's own context rounds to 28 digits, and a decimal has up to 38."""
_EPOCH: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - values have no zone


class PartitionField(NamedTuple):
    """A field of a partition spec: the value of a column itself, which has another id."""

    source_id: int
    field_id: int
    name: str
    kind: ColumnType


def iceberg_type(kind: ColumnType) -> str:
    """Return Iceberg's name of a flat type."""
    return f"decimal({kind.precision}, {kind.scale})" if kind.name == "decimal" else NAMES[kind.name]


def plain_value(kind: ColumnType, text: str) -> Any:
    """Return a value as manifests have it: days, microseconds, numbers, text.

    Raises:
        ValueError: The text is no value of that type.
    """
    return _plain(parse_value(kind, text))


def _plain(value: Any) -> Any:
    match value:
        case dt.datetime():
            return (value.replace(tzinfo=None) - _EPOCH) // dt.timedelta(microseconds=1)
        case dt.date():
            return (value - _EPOCH.date()).days
        case _:
            return value


def to_bytes(kind: ColumnType, value: Any) -> bytes:
    """Return a value of a flat type in Iceberg's binary form."""
    if kind.name == "decimal":
        unscaled = int(value.scaleb(kind.scale, _EXACT))
        return unscaled.to_bytes((unscaled + (unscaled < 0)).bit_length() // 8 + 1, "big", signed=True)
    if kind.name == "string":
        return str(value).encode()
    return struct.pack(_PACKED[NAMES[kind.name]], value)


def from_bytes(kind: ColumnType, data: bytes) -> Any:
    """Reverse `to_bytes`, also of a value that was written before its type was widened."""
    if kind.name == "decimal":
        return Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-kind.scale, _EXACT)
    if kind.name == "string":
        return data.decode()
    packed = _PACKED[NAMES[kind.name]]
    narrow = {"<q": "<i", "<d": "<f"}
    (value,) = struct.unpack(packed if struct.calcsize(packed) == len(data) else narrow[packed], data)
    return value


def bound(kind: ColumnType, text: str | None, *, upper: bool) -> bytes | None:
    """Return a recorded minimum or maximum; None if it is left out."""
    if text is None or kind.children or kind.name == "binary":
        return None
    with suppress(ValueError, struct.error, OverflowError):
        value = plain_value(kind, text)
        # Footers ignore NaN, which some readers take for the greatest number.
        if isinstance(value, float) and (upper or not math.isfinite(value)):
            return None
        return to_bytes(kind, value)
    return None


def write_manifest(
    store: Store,
    turn: int,
    entries: Sequence[Entry],
    *,
    spec_id: int,
    partition: Sequence[PartitionField],
    schema: str,
) -> Manifest:
    """Write a manifest and return its record for the manifest list.

    Args:
        store: Store of the destination.
        turn: Turn of the snapshot.
        entries: Its entries, all of one partition spec.
        spec_id: Id of the spec.
        partition: Fields of the spec.
        schema: The table's schema as JSON.
    """
    metadata = {
        "schema": schema,
        "partition-spec": msgspec.json.encode([spec_field(field) for field in partition]).decode(),
        "partition-spec-id": str(spec_id),
        "format-version": "2",
        "content": "data",
    }
    data = _avro(_entry_schema(partition), entries, metadata)
    path = _write(store, f"{turn}-m", data)
    counts = {}
    for status, name in ((ADDED, "added"), (EXISTING, "existing"), (DELETED, "deleted")):
        files = [entry["data_file"] for entry in entries if entry["status"] == status]
        counts[f"{name}_files_count"] = len(files)
        counts[f"{name}_rows_count"] = sum(file["record_count"] for file in files)
    live = [entry for entry in entries if entry["status"] != DELETED]
    return {
        "manifest_path": path,
        "manifest_length": len(data),
        "partition_spec_id": spec_id,
        "content": 0,
        "sequence_number": turn,
        "min_sequence_number": min((entry["sequence_number"] or turn for entry in live), default=turn),
        "added_snapshot_id": turn,
        **counts,
        "partitions": [_summary(field, entries) for field in partition],
    }


def spec_field(field: PartitionField) -> dict[str, Any]:
    """Return a field of a partition spec as metadata have it."""
    source, own = field.source_id, field.field_id
    return {"source-id": source, "field-id": own, "name": field.name, "transform": "identity"}


def _summary(field: PartitionField, entries: Iterable[Entry]) -> Entry:
    values = [entry["data_file"]["partition"][avro_name(field.name)] for entry in entries]
    known = [value for value in values if value is not None]
    return {
        "contains_null": len(known) < len(values),
        "contains_nan": None,
        "lower_bound": to_bytes(field.kind, min(known)) if known else None,
        "upper_bound": to_bytes(field.kind, max(known)) if known else None,
    }


def write_list(store: Store, turn: int, manifests: Sequence[Manifest], parent: int | None) -> str:
    """Write the manifest list of a turn's snapshot; return its location."""
    metadata = {
        "snapshot-id": str(turn),
        "parent-snapshot-id": "null" if parent is None else str(parent),
        "sequence-number": str(turn),
        "format-version": "2",
    }
    return _write(store, f"snap-{turn}", _avro(_LIST, manifests, metadata))


def read_avro(store: Store, location: str) -> list[dict[str, Any]]:
    """Return the records of a manifest or a manifest list.

    Raises:
        MalformedRecordError: It cannot be read.
        ObjectNotFoundError: It is gone.
    """
    key = location.removeprefix(f"{root_of(store)}/")
    data = store.get(key)
    try:
        records = [record for record in _fastavro().reader(BytesIO(data)) if isinstance(record, dict)]
    except (ValueError, KeyError, EOFError, TypeError, IndexError) as error:
        raise MalformedRecordError(f"{store.url}/{key}: {error}") from None
    for record in records:
        if (file := record.get("data_file")) is not None:
            file["partition"] = {name: _plain(value) for name, value in file["partition"].items()}
    return records


def root_of(store: Store) -> str:
    """Return the location of the destination as a table names it: its URL, or the path of a directory."""
    return store.url.removeprefix("file://")


def _write(store: Store, name: str, data: bytes) -> str:
    key = f"{FOLDER}{name}-{hashlib.sha256(data).hexdigest()[:16]}.avro"
    with suppress(AlreadyExistsError):  # equal digest, equal bytes
        create(store, key, data)
    return f"{root_of(store)}/{key}"


def _fastavro() -> Any:
    try:
        import fastavro  # noqa: PLC0415 - of the extra `tables`
    except ImportError as error:
        raise MissingPartError("Iceberg tables need fastavro: install lockgate[tables] here") from error
    return fastavro


def _avro(schema: Any, records: Iterable[Mapping[str, Any]], metadata: Mapping[str, str]) -> bytes:
    file = BytesIO()
    marker = hashlib.sha256(repr(sorted(metadata.items())).encode()).digest()[:16]
    _fastavro().writer(file, schema, records, codec="deflate", metadata=dict(metadata), sync_marker=marker)
    return file.getvalue()


def avro_name(name: str) -> str:
    """Return a column's name as a name in Avro, as Iceberg's own library does."""
    made = re.sub(r"[^A-Za-z0-9_]", lambda found: f"_x{ord(found[0]):X}", name)
    return made if not made[:1].isdigit() else f"_{made}"


def _field(name: str, kind: Any, field_id: int, *, optional: bool = True) -> dict[str, Any]:
    if not optional:
        return {"name": name, "type": kind, "field-id": field_id}
    return {"name": name, "type": ["null", kind], "default": None, "field-id": field_id}


def _map(name: str, key_id: int, value_id: int, value: str) -> dict[str, Any]:
    fields = [_field("key", "int", key_id, optional=False), _field("value", value, value_id, optional=False)]
    return {
        "type": "array",
        "logicalType": "map",
        "items": {"type": "record", "name": name, "fields": fields},
    }


def _partition_type(kind: ColumnType) -> Any:
    if kind.name == "decimal":
        size = ((10**kind.precision).bit_length() + 8) // 8
        name = f"decimal_{kind.precision}_{kind.scale}"
        form = {"logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
        return {"type": "fixed", "size": size, "name": name, **form}
    name = NAMES[kind.name]
    return _AVRO[name] or name


def _entry_schema(partition: Sequence[PartitionField]) -> Any:
    of_partition = [_field(avro_name(f.name), _partition_type(f.kind), f.field_id) for f in partition]
    data_file = [
        _field("content", "int", 134, optional=False),
        _field("file_path", "string", 100, optional=False),
        _field("file_format", "string", 101, optional=False),
        _field("partition", {"type": "record", "name": "r102", "fields": of_partition}, 102, optional=False),
        _field("record_count", "long", 103, optional=False),
        _field("file_size_in_bytes", "long", 104, optional=False),
        _field("null_value_counts", _map("k121_v122", 121, 122, "long"), 110),
        _field("lower_bounds", _map("k126_v127", 126, 127, "bytes"), 125),
        _field("upper_bounds", _map("k129_v130", 129, 130, "bytes"), 128),
    ]
    fields = [
        _field("status", "int", 0, optional=False),
        _field("snapshot_id", "long", 1),
        _field("sequence_number", "long", 3),
        _field("file_sequence_number", "long", 4),
        _field("data_file", {"type": "record", "name": "r2", "fields": data_file}, 2, optional=False),
    ]
    return {"type": "record", "name": "manifest_entry", "fields": fields}


_SUMMARY: Final = [
    _field("contains_null", "boolean", 509, optional=False),
    _field("contains_nan", "boolean", 518),
    _field("lower_bound", "bytes", 510),
    _field("upper_bound", "bytes", 511),
]
_LIST: Final = {
    "type": "record",
    "name": "manifest_file",
    "fields": [
        _field("manifest_path", "string", 500, optional=False),
        *(
            _field(name, kind, field_id, optional=False)
            for name, kind, field_id in (
                ("manifest_length", "long", 501),
                ("partition_spec_id", "int", 502),
                ("content", "int", 517),
                ("sequence_number", "long", 515),
                ("min_sequence_number", "long", 516),
                ("added_snapshot_id", "long", 503),
                ("added_files_count", "int", 504),
                ("existing_files_count", "int", 505),
                ("deleted_files_count", "int", 506),
                ("added_rows_count", "long", 512),
                ("existing_rows_count", "long", 513),
                ("deleted_rows_count", "long", 514),
            )
        ),
        _field(
            "partitions",
            {
                "type": "array",
                "items": {"type": "record", "name": "r508", "fields": _SUMMARY},
                "element-id": 508,
            },
            507,
        ),
    ],
}
