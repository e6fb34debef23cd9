"""Columns of a destination: from its log, or else from a file's footer and the names of folders."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from lockgate.storage_core.commit.destination.log import Manifest
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.parquet.store_file import StoreFile
from lockgate.storage_core.spark.schema.columns import SPARK_SCHEMA, ddl_type, quoted
from lockgate.storage_core.spark.schema.hive_layout import inferred_type
from lockgate.storage_core.stores import Store
from lockgate.storage_core.tables.partitions import partition_values


def published_schema(store: Store, manifest: Manifest) -> str:
    """Return the columns as Spark DDL, partition columns last.

    Raises:
        InvalidInputError: Nothing was ever published there, or a live file is not Parquet.
    """
    check_parquet(store.url, manifest)
    if manifest.columns is not None:
        return _ddl({column.name: column.type for column in manifest.columns})
    newest = max(manifest.files, default=None)
    if newest is None:
        raise InvalidInputError(
            f"{store.url}: no job has published anything there, so there are no columns; check the path, or "
            "read files of other writers with Spark's own reader"
        )
    folders = _folder_columns(manifest)
    own = _footer_schema(store, manifest.path(newest), manifest.files[newest].size)
    written = {field.name: ddl_type(field.dataType) for field in own.fields if field.name not in folders}
    return _ddl({**written, **folders})


def check_parquet(url: str, manifest: Manifest) -> None:
    """Check that every live file is Parquet.

    Raises:
        InvalidInputError: A live file is not Parquet.
    """
    other = next((key for key in manifest.files if not key.endswith(".parquet")), None)
    if other is not None:
        raise InvalidInputError(
            f"{url}: {other} is not Parquet, the only format of this reader; use spark.read.orc, json or csv"
        )


def _ddl(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{quoted(name)} {kind}" for name, kind in columns.items())


def _folder_columns(manifest: Manifest) -> dict[str, str]:
    rows = [partition_values(key) for key in manifest.files]
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: inferred_type(row.get(name) for row in rows) for name in names}


def recorded_schema(store: Store, manifest: Manifest) -> StructType | None:
    """Return the columns that Spark recorded in the newest file; None if another program wrote it."""
    newest = max(manifest.files, default=None)
    if newest is None:
        return None
    with _opened(store, manifest.path(newest), manifest.files[newest].size) as file:
        return _by_spark(file)


def _footer_schema(store: Store, key: str, size: int) -> StructType:
    with _opened(store, key, size) as file:
        return _by_spark(file) or from_arrow_schema(_with_instants(file))


def _opened(store: Store, key: str, size: int) -> pq.ParquetFile:
    return pq.ParquetFile(pa.PythonFile(StoreFile(store, key, size), mode="r"))


def _by_spark(file: pq.ParquetFile) -> StructType | None:
    recorded = (file.schema_arrow.metadata or {}).get(SPARK_SCHEMA)
    return StructType.fromJson(json.loads(recorded)) if recorded else None


def _with_instants(file: pq.ParquetFile) -> pa.Schema:
    """Return the file's schema with INT96 as the instants that Spark takes it for."""
    schema = file.schema_arrow
    for column in file.schema:
        if column.physical_type == "INT96" and column.path in schema.names:
            instant = pa.field(column.path, pa.timestamp("us", "UTC"))
            schema = schema.set(schema.get_field_index(column.path), instant)
    return schema
