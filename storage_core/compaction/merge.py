"""Merge a group of small files into one pending file, here or in Spark's tasks; one row group in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from io import BytesIO
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from lockgate.storage_core.commit.job import Job
from lockgate.storage_core.commit.job_events import acting_as
from lockgate.storage_core.commit.open_or_attach import attach_job
from lockgate.storage_core.compaction.small_files import LeftFile, MergeGroup, unreadable
from lockgate.storage_core.concurrency import in_order, in_parallel
from lockgate.storage_core.decoding import decode_json
from lockgate.storage_core.errors import ConflictError, InvalidInputError, ObjectNotFoundError
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.ids import TaskId
from lockgate.storage_core.parquet.parquet_file import MIB, FileOptions, ParquetFile
from lockgate.storage_core.parquet.store_file import StoreFile
from lockgate.storage_core.parquet.widening import widened
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores import Store

BATCH_ROWS: Final = 16_384
GROUPS_AT_ONCE: Final = 2
FILES_AHEAD: Final = 8
WHOLE_BYTES: Final = 2 * MIB
"""Files of this size are read at once, and up to `FILES_AHEAD` of them ahead; larger ones by ranges."""


class Merged(NamedTuple):
    """What became of a group: it is committed as a task, or one of its files cannot be read."""

    task_id: TaskId
    left: LeftFile | None = None


def merge(job: Job, at_once: int, group: MergeGroup) -> Merged:
    """Write the rows of a group as a task of a job, and commit the task.

    Args:
        job: The compaction.
        at_once: Small files that are read ahead.
        group: The files.

    Raises:
        ConflictError: Another job has replaced one of the files.
    """
    schema = pa.ipc.read_schema(pa.py_buffer(group.schema))
    ending = "" if group.compression == "none" else f".{group.compression}"
    path = f"{group.partition}/" if group.partition else ""
    path += f"compact-{group.digest[:16]}{ending}.parquet"
    options = FileOptions(compression=group.compression)
    try:
        with acting_as("worker"), job.attempt(group.task_id, input_digest=group.digest) as attempt:
            file = ParquetFile(partial(attempt.open_upload, path), schema, options)
            try:
                with step("task-write"):
                    for batch in _rows(job.store, group, schema, at_once):
                        file.add(batch)
                    file.close()
            except BaseException:
                file.drop()
                raise
            if file.rows != group.rows:
                raise ConflictError(
                    f"{job.store.url}/{path}: its files had {group.rows} rows, and now {file.rows}: they "
                    "have changed; nothing was published; run the compaction again"
                )
    except UnreadableFileError as error:
        return Merged(group.task_id, error.left)
    return Merged(group.task_id)


class UnreadableFileError(Exception):
    """A file of a group cannot be read, or not without loss; it does not leave `merge`.

    Attributes:
        left: The file and the reason.
    """

    def __init__(self, left: LeftFile) -> None:
        super().__init__(left)
        self.left = left


def merge_here(settings: Settings, job: Job, groups: Sequence[MergeGroup]) -> Iterator[Merged]:
    """Merge groups in threads of this process."""
    return in_parallel(
        partial(merge, job, min(FILES_AHEAD, settings.near_calls)),
        groups,
        min(GROUPS_AT_ONCE, settings.near_calls),
    )


def merge_on_spark(spark: Any, job: Job, groups: Sequence[MergeGroup]) -> Iterator[Merged]:
    """Merge groups in the tasks of a Spark session, each in one task."""
    rows = [(msgspec.json.encode(group).decode(),) for group in groups]
    frame = spark.createDataFrame(rows, "merge_group string").repartition(len(rows))
    run = partial(_merge_batches, job.destination, str(job.job_id), str(job.job_attempt))
    for row in frame.mapInArrow(run, "task_id string, key string, reason string").collect():
        yield Merged(TaskId(row.task_id), None if row.key is None else LeftFile(row.key, row.reason))


def _merge_batches(
    destination: str, job_id: str, job_attempt: str, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    job = None
    for batch in batches:
        for text in batch.column(0).to_pylist():
            job = job or attach_job(destination, job_id, job_attempt=job_attempt)
            merged = merge(job, FILES_AHEAD, decode_json(text, MergeGroup))
            left = merged.left or LeftFile(None, None)  # type: ignore[arg-type]
            columns = [pa.array([each], pa.string()) for each in (merged.task_id, left.key, left.reason)]
            yield pa.RecordBatch.from_arrays(columns, ["task_id", "key", "reason"])


def _rows(store: Store, group: MergeGroup, schema: pa.Schema, at_once: int) -> Iterator[pa.RecordBatch]:
    opened = in_order(partial(_source, store), group.files, at_once)
    for (key, *_), source in zip(group.files, opened, strict=True):
        try:
            with pq.ParquetFile(pa.PythonFile(source, mode="r"), coerce_int96_timestamp_unit="us") as file:
                for batch in file.iter_batches(BATCH_ROWS):
                    yield _conform(batch, schema, f"{store.url}/{key}")
        except (pa.ArrowException, OSError, ValueError) as error:
            raise UnreadableFileError(LeftFile(key, unreadable(error))) from error
        except InvalidInputError as error:
            raise UnreadableFileError(LeftFile(key, str(error))) from error
        except ObjectNotFoundError:
            raise _replaced(store, key) from None


def _source(store: Store, file: tuple[str, int, int, str]) -> BytesIO | StoreFile:
    key, size, *_ = file
    try:
        return BytesIO(store.get(key)) if size <= WHOLE_BYTES else StoreFile(store, key, size)
    except ObjectNotFoundError:
        raise _replaced(store, key) from None


def _replaced(store: Store, key: str) -> ConflictError:
    return ConflictError(
        f"{store.url}/{key} is gone: another job has replaced it; nothing was published, and no file is "
        "lost; run the compaction again"
    )


def _conform(batch: pa.RecordBatch, schema: pa.Schema, where: str) -> pa.RecordBatch:
    columns = [
        widened(batch.column(field.name), field, where)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
