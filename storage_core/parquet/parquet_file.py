"""Stream batches to a pending file as Parquet, one row group at a time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lockgate.storage_core.commit.uploads.pending_file_writer import PendingFileWriter

MIB: Final = 1024 * 1024
Compression = Literal["snappy", "zstd", "gzip", "lz4", "none"]

SAMPLE_ROWS: Final = 8192
DICTIONARY_SHARE: Final = 0.2
"""Maximum share of distinct values in a sample of a column for which a dictionary is used."""
COMPACT_BATCHES: Final = 128
"""Number of buffered batches that are merged to one, because small batches have a large overhead."""
COLUMN_OVERHEAD_BYTES: Final = 512
"""Approximate memory overhead of a column in an Arrow batch."""


@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """How a task writes rows to Parquet files.

    Attributes:
        compression: Compression of all columns.
        row_group_rows: Maximum number of rows in a row group.
        row_group_bytes: Size of Arrow data at which a row group is written.
        max_open_files: Maximum number of open files; beyond it the least recently used file is closed.
        max_records_per_file: Maximum number of rows in a file; 0 for no limit.
    """

    compression: Compression = "snappy"
    row_group_rows: int = 1_000_000
    row_group_bytes: int = 64 * MIB
    max_open_files: int = 64
    max_records_per_file: int = 0


class ParquetFile:
    """A Parquet file being written; buffers at most one row group of Arrow data.

    Its pending file is opened with the first row group, so a file with only buffered rows needs no upload.

    Attributes:
        rows: Number of rows so far.
        buffered_bytes: Memory of the buffered row group.
    """

    def __init__(
        self, open_pending: Callable[[], PendingFileWriter], schema: pa.Schema, options: FileOptions
    ) -> None:
        self.rows = 0
        self.buffered_bytes = 0
        self._open_pending = open_pending
        self._schema = schema
        self._options = options
        self._batches: list[pa.RecordBatch] = []
        self._buffered_rows = 0
        self._output: _Output | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Add a batch; write a row group whenever one is full."""
        while batch.num_rows:
            head = batch.slice(0, self._options.row_group_rows - self._buffered_rows)
            batch = batch.slice(head.num_rows)
            self.rows += head.num_rows
            self._buffer(head)
            if (
                self._buffered_rows >= self._options.row_group_rows
                or self.buffered_bytes >= self._options.row_group_bytes
            ):
                self.flush()

    def flush(self) -> None:
        """Write the buffered rows as a row group; an empty one if the file has none yet."""
        if self._batches or self._output is None:
            self._write_row_group()

    def close(self) -> None:
        """Write buffered rows and the footer, and seal the pending file with its rows."""
        output = self._write_row_group() if self._batches or self._output is None else self._output
        output.writer.close()
        output.pending.rows = self.rows
        output.pending.close()

    def drop(self) -> None:
        """Discard the file; the attempt aborts its pending upload."""
        self._batches = []
        if self._output is not None:
            self._output.sink.mute()
            with suppress(pa.ArrowException, RuntimeError):
                self._output.writer.close()  # now, not at garbage collection; its bytes are discarded

    def _buffer(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._buffered_rows += batch.num_rows
        self.buffered_bytes += _memory(batch)
        if len(self._batches) >= COMPACT_BATCHES:
            (compact,) = pa.Table.from_batches(self._batches).combine_chunks().to_batches()
            self._batches, self.buffered_bytes = [compact], _memory(compact)

    def _write_row_group(self) -> _Output:
        rows = pa.Table.from_batches(self._batches, schema=self._schema)
        if self._output is None:
            self._output = _Output.open(self._open_pending(), rows, self._options)
        self._batches, self._buffered_rows, self.buffered_bytes = [], 0, 0
        self._output.writer.write_table(rows, row_group_size=max(1, rows.num_rows))
        return self._output


def _memory(batch: pa.RecordBatch) -> int:
    overhead: int = COLUMN_OVERHEAD_BYTES * batch.num_columns
    return overhead + int(batch.nbytes)


@dataclass(frozen=True)
class _Output:
    """An open Parquet file: its pending file, and Arrow's writer."""

    pending: PendingFileWriter
    sink: _Sink
    writer: pq.ParquetWriter

    @classmethod
    def open(cls, pending: PendingFileWriter, first: pa.Table, options: FileOptions) -> Self:
        sink = _Sink(pending)
        writer = pq.ParquetWriter(
            sink,
            first.schema,
            compression=options.compression,
            use_dictionary=_dictionary_columns(first),
        )
        return cls(pending, sink, writer)


class _Sink:
    """File object over a pending file, for Arrow.

    Arrow writes a footer even to a file that is discarded; after `mute` those bytes are dropped.
    """

    closed = False

    def __init__(self, pending: PendingFileWriter) -> None:
        self._pending: PendingFileWriter | None = pending

    def write(self, data: bytes | pa.Buffer) -> int:
        if self._pending is not None:
            self._pending.write(memoryview(data))
        return len(data)

    def flush(self) -> None:
        """Do nothing: pending files send a part only when it is full."""

    def mute(self) -> None:
        self._pending = None


def _dictionary_columns(table: pa.Table) -> list[str]:
    """Return the flat columns to encode with a dictionary, estimated from the first rows."""
    sample = table.slice(0, SAMPLE_ROWS)
    return [
        field.name
        for field in table.schema
        if not pa.types.is_nested(field.type)
        and pc.count_distinct(sample[field.name]).as_py() <= max(1, DICTIONARY_SHARE * sample.num_rows)
    ]
