"""One Parquet file streamed into a pending file: batches are gathered to row groups, rows are counted."""

from __future__ import annotations

from contextlib import suppress
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage_core.commit import ColumnStatistics
from storage_core.spark.hive import value_text
from storage_core.spark.options import FileOptions

SAMPLE_ROWS: Final = 8192
DICTIONARY_SHARE: Final = 0.2
"""A column with more distinct values than this share of a sample gains nothing from a dictionary."""
STATISTICS_COLUMNS: Final = 32
"""Only the first columns are described, and only by short values: pending sets stay small."""
STATISTICS_LENGTH: Final = 64


class PendingFile(Protocol):
    """What a Parquet file is streamed into; `PendingFileWriter` of an attempt is one."""

    rows: int | None
    statistics: dict[str, ColumnStatistics]

    def write(self, data: memoryview, /) -> int:
        """Take the next bytes; they are not looked at after the call."""

    def close(self) -> None:
        """Seal the file."""


class ParquetFile:
    """A Parquet file being written; holds at most one row group of Arrow data.

    Attributes:
        rows: Taken so far.
        buffered_bytes: Arrow data of the row group that is being gathered.
    """

    def __init__(self, pending: PendingFile, schema: pa.Schema, options: FileOptions) -> None:
        self.rows = 0
        self.buffered_bytes = 0
        self._pending = pending
        self._schema = schema
        self._options = options
        self._batches: list[pa.RecordBatch] = []
        self._buffered_rows = 0
        self._sink = _Sink(pending)
        self._footers: list[pq.FileMetaData] = []
        self._writer: pq.ParquetWriter | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Take a batch; writes a row group whenever one is full."""
        while batch.num_rows:
            head = batch.slice(0, self._options.row_group_rows - self._buffered_rows)
            batch = batch.slice(head.num_rows)
            self._batches.append(head)
            self._buffered_rows += head.num_rows
            self.buffered_bytes += head.nbytes
            self.rows += head.num_rows
            if (
                self._buffered_rows >= self._options.row_group_rows
                or self.buffered_bytes >= self._options.row_group_bytes
            ):
                self.flush()

    def flush(self) -> None:
        """Write what is gathered as a row group; also an empty one, if the file would have none."""
        if not self._batches and self._writer is not None:
            return
        gathered = pa.Table.from_batches(self._batches, schema=self._schema)
        if self._writer is None:
            self._writer = self._open(gathered)
        self._batches, self._buffered_rows, self.buffered_bytes = [], 0, 0
        self._writer.write_table(gathered, row_group_size=max(1, gathered.num_rows))

    def close(self) -> None:
        """Write the rest and the footer, and seal the pending file with its rows and statistics."""
        self.flush()
        if self._writer is not None:
            self._writer.close()
        self._pending.rows = self.rows
        self._pending.statistics = _statistics(self._footers[0])
        self._pending.close()

    def drop(self) -> None:
        """Forget the file; its pending upload is the attempt's to abort."""
        self._sink.pending = None
        self._batches = []
        if self._writer is not None:
            with suppress(
                pa.ArrowException, RuntimeError
            ):  # a footer after a failed row group has no meaning
                self._writer.close()

    def _open(self, first: pa.Table) -> pq.ParquetWriter:
        return pq.ParquetWriter(
            self._sink,
            self._schema,
            compression=self._options.compression,
            use_dictionary=_repetitive(first),
            metadata_collector=self._footers,
        )


class _Sink:
    """The face of a pending file that Arrow writes to.

    Arrow writes a footer even into a file that is given up, when its writer is collected at the latest;
    with the pending file taken out, those bytes go nowhere.
    """

    def __init__(self, pending: PendingFile) -> None:
        self.pending: PendingFile | None = pending
        self.closed = False

    def write(self, data: bytes | pa.Buffer) -> int:
        if self.pending is not None:
            self.pending.write(memoryview(data))
        return len(data)

    def flush(self) -> None:
        """Pending files write parts when they are full, never before."""

    def close(self) -> None:
        self.closed = True


def _repetitive(table: pa.Table) -> list[str]:
    """Return the flat columns that a dictionary makes smaller, judged by the first rows."""
    sample = table.slice(0, SAMPLE_ROWS)
    return [
        field.name
        for field in table.schema
        if not pa.types.is_nested(field.type)
        and pc.count_distinct(sample[field.name]).as_py() <= max(1, DICTIONARY_SHARE * sample.num_rows)
    ]


def _statistics(footer: pq.FileMetaData) -> dict[str, ColumnStatistics]:
    flat = [
        (index, column.path)
        for index in range(footer.num_columns)
        if (column := footer.schema.column(index)).max_repetition_level == 0
        and column.max_definition_level <= 1
        and column.path == column.name
    ]
    return {path: _column_statistics(footer, index) for index, path in flat[:STATISTICS_COLUMNS]}


def _column_statistics(footer: pq.FileMetaData, index: int) -> ColumnStatistics:
    chunks = [footer.row_group(group).column(index) for group in range(footer.num_row_groups)]
    known = [(chunk.num_values, chunk.statistics) for chunk in chunks]
    if any(statistics is None or not statistics.has_null_count for _, statistics in known):
        return ColumnStatistics()
    nulls = sum(statistics.null_count for _, statistics in known)
    # A row group of nulls only has no bounds; one of values without bounds (NaN, say) leaves them unknown.
    bounded = [statistics for values, statistics in known if statistics.null_count < values]
    if not bounded or not all(statistics.has_min_max for statistics in bounded):
        return ColumnStatistics(nulls=nulls)
    lowest = _short_text(min(statistics.min for statistics in bounded))
    highest = _short_text(max(statistics.max for statistics in bounded))
    if lowest is None or highest is None:
        return ColumnStatistics(nulls=nulls)
    return ColumnStatistics(nulls=nulls, minimum=lowest, maximum=highest)


def _short_text(value: object) -> str | None:
    """Return a bound as text; None where the text would not mean the value, or would be long."""
    if isinstance(value, bytes):
        return None
    text = value_text(value) or ""
    return text if len(text) <= STATISTICS_LENGTH else None
