"""The files of one task attempt: rows go to the file of their partition, and few files are open at a time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Final, Self

import numpy as np
import pyarrow as pa

from storage_core.spark.hive import partition_folder
from storage_core.spark.options import FileOptions
from storage_core.spark.parquet import ParquetFile, PendingFile

BUFFERED_ROW_GROUPS: Final = 4
"""All open files of a task together gather at most this many row groups of Arrow data."""


class TaskFiles:
    """Routes rows to one Parquet file a partition; closes the least recently used beyond a limit.

    As a context manager it seals its files on success and forgets them on an exception.
    """

    def __init__(
        self,
        open_pending: Callable[[str], PendingFile],
        *,
        task: int,
        schema: pa.Schema,
        partition_by: Sequence[str],
        options: FileOptions,
        keep_empty: bool,
    ) -> None:
        """Start without a file.

        Args:
            open_pending: Opens a pending file at a path relative to the destination.
            task: The task's number; file names carry it.
            schema: Of the files: without the partition columns; batches are cast to it.
            partition_by: Columns that become folders, in this order.
            options: How rows become files.
            keep_empty: Without any row and without partitions, write a file that has the columns only, as
                Spark's first task does.
        """
        self._open_pending = open_pending
        self._task = task
        self._schema = schema
        self._partition_by = tuple(partition_by)
        self._options = options
        self._keep_empty = keep_empty
        self._open: OrderedDict[str, ParquetFile] = OrderedDict()
        self._opened = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Write the rows of a batch.

        Raises:
            InvalidInputError: A partition value that cannot be a folder's name.
        """
        for folder, rows in split(batch, self._partition_by):
            columns = [
                column.cast(field.type) for column, field in zip(rows.columns, self._schema, strict=True)
            ]
            self._add(folder, pa.RecordBatch.from_arrays(columns, schema=self._schema))
        self._spare_memory()

    def close(self) -> None:
        """Seal all files."""
        if self._keep_empty and not self._opened and not self._partition_by:
            self._file("")
        while self._open:
            self._seal(next(iter(self._open)))

    def drop(self) -> None:
        """Forget all files that are open; their pending uploads are the attempt's to abort."""
        while self._open:
            self._open.popitem(last=False)[1].drop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.close()
        finally:
            self.drop()

    def _add(self, folder: str, rows: pa.RecordBatch) -> None:
        limit = self._options.max_records_per_file
        while rows.num_rows:
            file = self._file(folder)
            head = rows.slice(0, limit - file.rows) if limit else rows
            rows = rows.slice(head.num_rows)
            file.add(head)
            if limit and file.rows >= limit:
                self._seal(folder)

    def _file(self, folder: str) -> ParquetFile:
        file = self._open.get(folder)
        if file is None:
            while len(self._open) >= self._options.max_open_files:
                self._seal(next(iter(self._open)))
            file = ParquetFile(self._open_pending(self._path(folder)), self._schema, self._options)
            self._opened += 1
            self._open[folder] = file
        self._open.move_to_end(folder)
        return file

    def _seal(self, folder: str) -> None:
        self._open[folder].close()
        del self._open[folder]  # not before: what could not be sealed is still there to be dropped

    def _path(self, folder: str) -> str:
        codec = self._options.compression
        ending = "" if codec == "none" else f".{codec}"
        name = f"part-{self._task:05d}-{self._opened:04d}{ending}.parquet"
        return f"{folder}/{name}" if folder else name

    def _spare_memory(self) -> None:
        """Write the largest gathered row groups early while all files together gather too much."""
        limit = BUFFERED_ROW_GROUPS * self._options.row_group_bytes
        while sum(file.buffered_bytes for file in self._open.values()) > limit:
            max(self._open.values(), key=lambda file: file.buffered_bytes).flush()


def split(batch: pa.RecordBatch, partition_by: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the folder of each partition in a batch, with its rows without the partition columns.

    Rows keep their order within a partition.
    """
    if not partition_by or not batch.num_rows:
        yield "", batch.select([name for name in batch.schema.names if name not in partition_by])
        return
    body = batch.select([name for name in batch.schema.names if name not in partition_by])
    encoded = [batch.column(name).dictionary_encode("encode") for name in partition_by]
    groups = np.zeros(batch.num_rows, dtype=np.int64)
    for column in encoded:
        # Renumbered after each column, so that the numbers never exceed the rows and cannot overflow.
        groups = groups * len(column.dictionary) + column.indices.to_numpy(zero_copy_only=False)
        groups = np.unique(groups, return_inverse=True)[1]
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
    for start, stop in zip(starts, [*starts[1:], batch.num_rows], strict=True):
        first = int(order[start])
        folder = partition_folder(partition_by, [column[first].as_py() for column in encoded])
        # A copy of these rows only: a slice would keep the whole batch alive for a few rows.
        yield folder, body if len(starts) == 1 else body.take(pa.array(order[start:stop]))
