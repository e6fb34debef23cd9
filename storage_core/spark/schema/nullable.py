"""Make all fields of a schema nullable, at every depth, as in files that Spark writes."""

from __future__ import annotations

import pyarrow as pa


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
