"""Check a data set's columns before anything is written, and record them for readers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from lockgate.storage_core.commit.records.layout import is_hidden
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.spark.schema.hive_layout import escape
from lockgate.storage_core.stores.protocol import check_key

SPARK_SCHEMA: Final = b"org.apache.spark.sql.parquet.row.metadata"
"""Metadata key of Spark's schema in Parquet files."""

_FOLDERS: Final = (
    StringType, BooleanType, ByteType, ShortType, IntegerType, LongType, DecimalType, DateType,
    TimestampType, TimestampNTZType,
)  # fmt: skip
_KEPT: Final = (*_FOLDERS, BinaryType, FloatType, DoubleType)


def check_columns(schema: StructType, partition_by: Sequence[str]) -> StructType:
    """Check that Arrow and Parquet preserve every column, and return the schema as it is written.

    As in Spark, a partition column has the name that the user gave, also if the schema has other case.

    Raises:
        InvalidInputError: See `partition_columns`; or Arrow or Parquet would change a type.
    """
    for field in schema.fields:
        _check_kept(field.name, field.dataType)
    given = {name.lower(): name for name in partition_columns(schema, partition_by)}
    names = [given.get(name.lower(), name) for name in schema.names]
    return StructType(
        [
            StructField(name, field.dataType, field.nullable, field.metadata)
            for name, field in zip(names, schema.fields, strict=True)
        ]
    )


def partition_columns(schema: StructType, partition_by: Sequence[str]) -> tuple[str, ...]:
    """Return the partition columns as the user gave them.

    Raises:
        InvalidInputError: Two columns have one name, a partition column does not exist or cannot be a folder,
            or no column is left for the files. Nothing was written.
    """
    names = [field.name for field in schema.fields]
    lowered = [name.lower() for name in names]
    for name in names:
        if lowered.count(name.lower()) > 1:
            raise InvalidInputError(f"column {name!r} exists twice; rename one with withColumnRenamed")
    chosen = [_spelled(name, names) for name in partition_by]
    if len(set(chosen)) < len(chosen):
        raise InvalidInputError(f"partition_by names a column twice: {', '.join(partition_by)}")
    for name, given in zip(chosen, partition_by, strict=True):
        _check_folder(given, schema[name].dataType)
    if len(chosen) == len(names):
        raise InvalidInputError(
            f"no column is left for the files: {', '.join(names) or 'there is none'}"
            f"{', all of them partition columns' if names else ''}; remove one from partition_by"
        )
    return tuple(partition_by)


def _check_folder(name: str, kind: DataType) -> None:
    if is_hidden(check_key(f"{escape(name)}=x")):
        raise InvalidInputError(f"partition column {name!r} makes folders that readers skip; rename it")
    if isinstance(kind, BinaryType):
        raise InvalidInputError(
            f"partition column {name!r} is binary: Spark writes such folders as text, in which two values "
            "may be equal, and reads them back as strings; nothing was written; use hex(…) or base64(…) of it"
        )
    if isinstance(kind, FloatType | DoubleType):
        raise InvalidInputError(
            f"partition column {name!r} is {kind.simpleString()}: each version of Java gives such a number "
            "another text, and so another folder; nothing was written; cast it to a decimal"
        )
    if isinstance(kind, StringType) and not kind.isUTF8BinaryCollation():
        raise InvalidInputError(
            f"partition column {name!r} has the collation {kind.collation}, in which one value has several "
            "texts, and so several folders; nothing was written; cast it to a string without a collation: "
            "collate(…, 'UTF8_BINARY')"
        )
    if not isinstance(kind, _FOLDERS):
        raise InvalidInputError(
            f"partition column {name!r} is {kind.simpleString()}, which cannot be a folder's name; "
            "cast it to a string"
        )


def _spelled(name: str, names: Sequence[str]) -> str:
    for known in names:
        if known == name or known.lower() == name.lower():
            return known
    raise InvalidInputError(f"partition column {name!r} does not exist; the columns are {', '.join(names)}")


def _check_kept(path: str, kind: DataType) -> None:
    match kind:
        case StructType():
            if not kind.fields:
                raise InvalidInputError(
                    f"column {path!r} is a struct without fields, which Parquet cannot keep"
                )
            for field in kind.fields:
                _check_kept(f"{path}.{field.name}", field.dataType)
        case ArrayType():
            _check_kept(f"{path}.element", kind.elementType)
        case MapType():
            _check_kept(f"{path}.key", kind.keyType)
            _check_kept(f"{path}.value", kind.valueType)
        case _ if not isinstance(kind, _KEPT):
            raise InvalidInputError(
                f"column {path!r} has the type {kind.simpleString()}, which Spark changes for Arrow; nothing "
                "was written; cast it (an interval to a number of seconds, a variant or a "
                "time to a string), or write it staged, with lockgate.storage_core.spark.stage"
            )


def recorded_columns(schema: StructType, partition_by: Sequence[str]) -> list[tuple[str, str]]:
    """Return name and type (Spark DDL) of every column, partition columns last, as in Spark."""
    own = [field for field in schema.fields if field.name not in partition_by]
    folders = [schema[name] for name in partition_by]
    return [(field.name, ddl_type(field.dataType)) for field in (*own, *folders)]


def ddl_type(kind: DataType) -> str:
    """Return a type as Spark DDL, with nested names quoted, unlike `simpleString`."""
    match kind:
        case StructType():
            return f"struct<{','.join(f'{quoted(f.name)}:{ddl_type(f.dataType)}' for f in kind.fields)}>"
        case ArrayType():
            return f"array<{ddl_type(kind.elementType)}>"
        case MapType():
            return f"map<{ddl_type(kind.keyType)},{ddl_type(kind.valueType)}>"
        case _:
            return kind.simpleString()


def quoted(name: str) -> str:
    """Return a column name quoted for SQL and DDL."""
    return f"`{name.replace('`', '``')}`"


def file_schema(schema: StructType, partition_by: Sequence[str]) -> StructType:
    """Return the columns that are stored in files: all but the partition columns."""
    return StructType([field for field in schema.fields if field.name not in partition_by])


def nullable_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema with all columns and nested fields nullable.

    Spark declares the fields of a literal struct as not null, but they have nulls if the struct itself is
    null, which Parquet's writer refuses.
    """
    return pa.schema([_nullable(field) for field in schema], schema.metadata)


def _nullable(field: pa.Field) -> pa.Field:
    return field.with_type(_nullable_type(field.type)).with_nullable(True)


def _nullable_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([_nullable(field) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_nullable(kind.value_field))
    if pa.types.is_map(kind):
        key = kind.key_field.with_type(_nullable_type(kind.key_type))  # a key is never null
        return pa.map_(key, _nullable(kind.item_field))
    return kind
