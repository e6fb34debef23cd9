"""Write the rows of one task attempt to one file per partition, with a limit of open files."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Final, Self

import numpy as np
import pyarrow as pa

from lockgate.storage_core.commit.uploads.pending_file_writer import PendingFileWriter
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.parquet.parquet_file import FileOptions, ParquetFile
from lockgate.storage_core.spark.schema.hive_layout import partition_folder

BUFFERED_ROW_GROUPS: Final = 4
"""Maximum Arrow data that all files of a task buffer together, in row groups."""


class TaskFiles:
    """Routes rows to one Parquet file per partition.

    Rows are buffered in memory. When all files together buffer too much, the largest row groups are written.
    A file is open from its first row group on. Beyond the limit of open files the least recently used one is
    sealed, and its partition gets another file for later rows.

    As a context manager it seals its files on success and discards them on an exception.
    """

    def __init__(
        self,
        open_pending: Callable[[str], PendingFileWriter],
        *,
        task: int,
        schema: pa.Schema,
        partition_by: Sequence[str],
        options: FileOptions,
        keep_empty: bool,
        ansi: bool = True,
    ) -> None:
        """Start without a file.

        Args:
            open_pending: Function that opens a pending file at a path below the destination.
            task: Number of the task, for file names.
            schema: Schema of the files, without partition columns; batches are cast to it.
            partition_by: Columns that become folders, in this order.
            options: How rows are written to files.
            keep_empty: Without rows and partition columns, write an empty file, as Spark's first task does.
            ansi: `spark.sql.ansi.enabled`: see `hive_layout.folder_text`.
        """
        self._open_pending = open_pending
        self._task = task
        self._schema = schema
        self._partition_by = tuple(partition_by)
        self._options = options
        self._keep_empty = keep_empty
        self._ansi = ansi
        self._files: dict[str, ParquetFile] = {}
        self._open: OrderedDict[str, None] = OrderedDict()
        self._opened = 0

    @property
    def buffered_bytes(self) -> int:
        """Memory of all buffered row groups."""
        return sum(file.buffered_bytes for file in self._files.values())

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the rows of a batch.

        Raises:
            InvalidInputError: A partition value cannot be a folder's name.
        """
        for folder, rows in split(batch, self._partition_by, self._schema, ansi=self._ansi):
            self._add(folder, rows)
        while self.buffered_bytes > BUFFERED_ROW_GROUPS * self._options.row_group_bytes:
            max(self._files.values(), key=lambda file: file.buffered_bytes).flush()

    def close(self) -> None:
        """Seal all files."""
        if self._keep_empty and not self._files and not self._opened and not self._partition_by:
            self._file("")
        while self._files:
            self._seal(next(iter(self._open or self._files)))

    def drop(self) -> None:
        """Discard all files; the attempt aborts their pending uploads."""
        while self._files:
            self._files.popitem()[1].drop()
        self._open.clear()

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
        file = self._files.get(folder)
        if file is None:
            file = ParquetFile(partial(self._begin, folder), self._schema, self._options)
            self._files[folder] = file
        if folder in self._open:
            self._open.move_to_end(folder)
        return file

    def _begin(self, folder: str) -> PendingFileWriter:
        """Open a partition's pending file for its first row group, within the limit of open files."""
        while len(self._open) >= self._options.max_open_files:
            self._seal(next(iter(self._open)))
        pending = self._open_pending(self._path(folder))
        self._opened += 1
        self._open[folder] = None
        return pending

    def _seal(self, folder: str) -> None:
        self._files[folder].close()
        del self._files[folder]  # only now: a file that could not be sealed must still be dropped
        del self._open[folder]

    def _path(self, folder: str) -> str:
        codec = self._options.compression
        ending = "" if codec == "none" else f".{codec}"
        name = f"part-{self._task:05d}-{self._opened:04d}{ending}.parquet"
        return f"{folder}/{name}" if folder else name


def split(
    batch: pa.RecordBatch, partition_by: Sequence[str], schema: pa.Schema, *, ansi: bool = True
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the folder and the rows of each partition in a batch, with the rows cast to the files' schema.

    Rows keep their order within a partition.
    """
    columns = [batch.column(field.name).cast(field.type) for field in schema]
    body = pa.RecordBatch.from_arrays(columns, schema=schema)
    if not partition_by or not batch.num_rows:
        yield "", body
        return
    encoded = [batch.column(name).dictionary_encode("encode") for name in partition_by]
    groups = np.zeros(batch.num_rows, dtype=np.int64)
    for column in encoded:
        # Renumber after each column, so that group numbers never exceed the rows and cannot overflow.
        groups = groups * len(column.dictionary) + column.indices.to_numpy(zero_copy_only=False)
        groups = np.unique(groups, return_inverse=True)[1]
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
    for start, stop in zip(starts, [*starts[1:], batch.num_rows], strict=True):
        first = int(order[start])
        values = [_value(name, column, first) for name, column in zip(partition_by, encoded, strict=True)]
        folder = partition_folder(partition_by, values, ansi=ansi)
        # Copy these rows: a slice would keep the whole batch in memory.
        yield folder, body if len(starts) == 1 else body.take(pa.array(order[start:stop]))


def _value(name: str, encoded: pa.DictionaryArray, row: int) -> object:
    """Return a partition value.

    Raises:
        InvalidInputError: It is a date or a timestamp that Python cannot represent.
    """
    try:
        return encoded[row].as_py()
    except (ValueError, OverflowError) as error:
        raise InvalidInputError(
            f"partition column {name!r}: a date or timestamp is outside the years 1 to 9999 ({error}); "
            "nothing of this task was kept; partition by another column, or cast it to a string"
        ) from None
