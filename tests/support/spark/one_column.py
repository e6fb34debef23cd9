"""A destination of one Parquet file with one column `x`, and its rows by Lockgate's reader, without Java."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet
from pyspark.sql.pandas.types import from_arrow_schema

from lockgate import open_job, read_manifest
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.spark.reader.partition_reader import LiveFilesReader
from lockgate.storage_core.spark.source_options import read_options


def published(
    destination: str,
    settings: Settings,
    column: pa.Array,
    *,
    metadata: Mapping[bytes, bytes] | None = None,
    **options: Any,
) -> None:
    """Publish a column in `a.parquet`, with key-value metadata and options of Arrow's writer."""
    data, table = BytesIO(), pa.table({"x": column})
    with parquet.ParquetWriter(data, table.schema, store_schema=False, **options) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(dict(metadata or {}))
    with open_job(destination, "sales", settings=settings) as job:
        with job.attempt("t") as attempt, attempt.open("a.parquet") as file:
            file.write(data.getvalue())
        job.commit()


def rows(destination: str, settings: Settings, kind: pa.DataType) -> list[Any]:
    """Read the column as a type."""
    schema = from_arrow_schema(pa.schema([("x", kind)]))
    manifest = read_manifest(destination, settings=settings)
    options = read_options({"path": destination})
    reader = LiveFilesReader(schema, manifest, Path(destination).as_uri(), options)
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [row for batch in batches for row in batch["x"].to_pylist()]
