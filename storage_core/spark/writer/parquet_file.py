"""One Parquet file streamed into a pending file: batches are gathered to row groups, rows are counted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lockgate.storage_core.commit import ColumnStatistics
from lockgate.storage_core.spark.options import FileOptions
from lockgate.storage_core.spark.writer.parquet_footer import footer_statistics

SAMPLE_ROWS: Final = 8192
DICTIONARY_SHARE: Final = 0.2
"""A column with more distinct values than this share of a sample gains nothing from a dictionary."""
COMPACT_BATCHES: Final = 128
"""So many batches of a row group are joined to one: small ones cost more memory than their data."""
COLUMN_OVERHEAD_BYTES: Final = 512
"""About what Arrow spends on a column of a batch beside its data."""


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

    Its pending file is opened with its first row group, so a file that is only gathering costs no upload.

    Attributes:
        rows: Taken so far.
        buffered_bytes: Memory of the row group that is being gathered.
    """

    def __init__(
        self, open_pending: Callable[[], PendingFile], schema: pa.Schema, options: FileOptions
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
        """Take a batch; writes a row group whenever one is full."""
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
        """Write what is gathered as a row group; also an empty one, if the file would have none."""
        if self._batches or self._output is None:
            self._write_row_group()

    def close(self) -> None:
        """Write the rest and the footer, and seal the pending file with its rows and statistics."""
        output = self._write_row_group() if self._batches or self._output is None else self._output
        output.writer.close()
        output.pending.rows = self.rows
        output.pending.statistics = footer_statistics(output.footers[0])
        output.pending.close()

    def drop(self) -> None:
        """Forget the file; its pending upload is the attempt's to abort."""
        self._batches = []
        if self._output is not None:
            self._output.sink.mute()
            with suppress(pa.ArrowException, RuntimeError):
                self._output.writer.close()  # now, not when it is collected; its bytes go nowhere

    def _buffer(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._buffered_rows += batch.num_rows
        self.buffered_bytes += _memory(batch)
        if len(self._batches) >= COMPACT_BATCHES:
            (compact,) = pa.Table.from_batches(self._batches).combine_chunks().to_batches()
            self._batches, self.buffered_bytes = [compact], _memory(compact)

    def _write_row_group(self) -> _Output:
        gathered = pa.Table.from_batches(self._batches, schema=self._schema)
        if self._output is None:
            self._output = _Output.open(self._open_pending(), gathered, self._options)
        self._batches, self._buffered_rows, self.buffered_bytes = [], 0, 0
        self._output.writer.write_table(gathered, row_group_size=max(1, gathered.num_rows))
        return self._output


def _memory(batch: pa.RecordBatch) -> int:
    overhead: int = COLUMN_OVERHEAD_BYTES * batch.num_columns
    return overhead + int(batch.nbytes)


@dataclass(frozen=True)
class _Output:
    """An opened file: where its bytes go, and what Arrow says of it in the end."""

    pending: PendingFile
    sink: _Sink
    writer: pq.ParquetWriter
    footers: list[pq.FileMetaData]

    @classmethod
    def open(cls, pending: PendingFile, first: pa.Table, options: FileOptions) -> Self:
        sink, footers = _Sink(pending), []  # type: tuple[_Sink, list[pq.FileMetaData]]
        writer = pq.ParquetWriter(
            sink,
            first.schema,
            compression=options.compression,
            use_dictionary=_repetitive(first),
            metadata_collector=footers,
        )
        return cls(pending, sink, writer, footers)


class _Sink:
    """The face of a pending file that Arrow writes to.

    Arrow writes a footer even into a file that is given up; muted, those bytes go nowhere.
    """

    closed = False

    def __init__(self, pending: PendingFile) -> None:
        self._pending: PendingFile | None = pending

    def write(self, data: bytes | pa.Buffer) -> int:
        if self._pending is not None:
            self._pending.write(memoryview(data))
        return len(data)

    def flush(self) -> None:
        """Pending files write parts when they are full, never before."""

    def mute(self) -> None:
        self._pending = None


def _repetitive(table: pa.Table) -> list[str]:
    """Return the flat columns that a dictionary makes smaller, judged by the first rows."""
    sample = table.slice(0, SAMPLE_ROWS)
    return [
        field.name
        for field in table.schema
        if not pa.types.is_nested(field.type)
        and pc.count_distinct(sample[field.name]).as_py() <= max(1, DICTIONARY_SHARE * sample.num_rows)
    ]
