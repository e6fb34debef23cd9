"""Read a destination by its log: whole jobs only, even while another job commits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from lockgate.storage_core.commit.destination.log import Manifest
from lockgate.storage_core.parquet.julian_dates import check_gregorian, has_julian_dates
from lockgate.storage_core.parquet.store_file import StoreFile
from lockgate.storage_core.parquet.widening import widened
from lockgate.storage_core.spark.schema.hive_layout import folder_value
from lockgate.storage_core.spark.source_options import ReadOptions
from lockgate.storage_core.stores import Store, open_store
from lockgate.storage_core.tables.partitions import partition_values

BATCH_ROWS: Final = 16_384


@dataclass(frozen=True)
class FileGroup(InputPartition):
    """Places and sizes of the files that one Spark task reads."""

    files: tuple[tuple[str, int], ...]


class LiveFilesReader(DataSourceReader):
    """Reads the files that a manifest names.

    It does not support filter pushdown: Spark 4.3 reuses the partitions planned with one query's filters for
    the next query on the same data frame.
    """

    def __init__(self, schema: StructType, manifest: Manifest, url: str, options: ReadOptions) -> None:
        self._kinds = to_arrow_schema(schema, timezone="UTC")
        self._url = url
        self._time_zone = options.time_zone
        self._split_bytes = options.split_bytes
        self._files = [(manifest.path(key), file.size) for key, file in manifest.files.items()]

    def partitions(self) -> Sequence[InputPartition]:
        """Return the live files in groups of about `splitBytes`."""
        return [FileGroup(tuple(group)) for group in self._groups()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a group of files as Arrow batches."""
        if not isinstance(partition, FileGroup):
            return  # Spark passes a placeholder if there are no partitions, because there are no live files
        store = open_store(self._url)
        for key, size in partition.files:
            yield from _read_file(store, key, size, self._kinds, self._time_zone)

    def _groups(self) -> Iterator[list[tuple[str, int]]]:
        group: list[tuple[str, int]] = []
        size = 0
        for path, file_size in self._files:
            if group and size + file_size > self._split_bytes:
                yield group
                group, size = [], 0
            group.append((path, file_size))
            size += file_size
        if group:
            yield group


def _read_file(
    store: Store, key: str, size: int, wanted: pa.Schema, time_zone: str
) -> Iterator[pa.RecordBatch]:
    folders = partition_values(key)
    # Nanoseconds since 1970 do not reach beyond 1677 and 2262.
    source = pa.PythonFile(StoreFile(store, key, size), mode="r")
    with pq.ParquetFile(source, coerce_int96_timestamp_unit="us") as file:
        own = [name for name in wanted.names if name not in folders and name in file.schema_arrow.names]
        is_julian = has_julian_dates(file.schema_arrow.metadata or {})
        for batch in file.iter_batches(BATCH_ROWS, columns=own):
            if is_julian:
                check_gregorian(batch, f"{store.url}/{key}")
            yield _conform(batch, folders, wanted, time_zone, f"{store.url}/{key}")


def _conform(
    batch: pa.RecordBatch, folders: Mapping[str, str | None], wanted: pa.Schema, time_zone: str, where: str
) -> pa.RecordBatch:
    """Return the batch with exactly the wanted columns and types, including partition values.

    Raises:
        InvalidInputError: A column of the file has a wider type, or another one.
    """
    columns = []
    for field in wanted:
        if field.name in folders:
            value = folder_value(folders[field.name], field.type, time_zone)
            columns.append(pa.repeat(value, batch.num_rows))
        elif field.name in batch.schema.names:
            columns.append(widened(batch.column(field.name), field, where))
        else:
            columns.append(pa.nulls(batch.num_rows, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=wanted)
