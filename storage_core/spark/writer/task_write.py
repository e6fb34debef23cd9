"""Write the rows of one Spark task as one committed attempt, in batch and streaming writes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from lockgate.storage_core.commit.job import Job
from lockgate.storage_core.commit.job_events import acting_as
from lockgate.storage_core.commit.task.attempt import Attempt
from lockgate.storage_core.ids import AttemptId, TaskId, new_attempt_id
from lockgate.storage_core.parquet.parquet_file import FileOptions
from lockgate.storage_core.spark.schema.columns import SPARK_SCHEMA, file_schema, nullable_schema
from lockgate.storage_core.spark.writer.partition_files import TaskFiles


@dataclass(frozen=True)
class TaskCommitted(WriterCommitMessage):
    """Message of a task to the driver: its committed attempt."""

    task_id: TaskId
    attempt_id: AttemptId


def task_context() -> TaskContext:
    """Return the context of the current Spark task.

    Raises:
        RuntimeError: This process does not run a Spark task.
    """
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("a task's rows can be written inside a Spark task only")
    return context


@dataclass(frozen=True)
class TaskWrite:
    """Parameters of a task's write; pickled from planning to the tasks.

    Attributes:
        schema: Schema of the rows, with partition columns named as their folders.
        partition_by: Columns that become folders, in this order.
        files: How rows are written to files.
    """

    schema: StructType
    partition_by: tuple[str, ...]
    files: FileOptions

    def run(self, job: Job, batches: Iterator[pa.RecordBatch], *, keep_empty: bool) -> TaskCommitted:
        """Write the rows of the current Spark task and commit it.

        Args:
            job: Job, attached with the job attempt of the task's driver.
            batches: Rows of the task.
            keep_empty: Write an empty file if no task has rows and there are no partition columns.

        Raises:
            InvalidInputError: A partition value cannot be a folder's name.
            LockgateError: The store failed, or the job is already decided; the attempt is aborted.
        """
        context = task_context()
        task = context.partitionId()
        # If Spark cancels a try, its rows may just end, and an incomplete task commits. The attempt's id is
        # therefore its input digest, so that an attempt is selected only if Spark reports it. The id has
        # Spark's number for operators, and a random part that makes it unique.
        attempt_id = AttemptId(f"t{context.taskAttemptId()}-{new_attempt_id()}")
        with (
            acting_as("worker"),
            job.attempt(TaskId(f"part-{task:05d}"), attempt_id, input_digest=attempt_id) as attempt,
        ):
            self._stream(attempt, task, batches, keep_empty=keep_empty and task == 0)
        return TaskCommitted(attempt.task_id, attempt.attempt_id)

    def _stream(
        self, attempt: Attempt, task: int, batches: Iterator[pa.RecordBatch], *, keep_empty: bool
    ) -> None:
        batches = (batch.rename_columns(self.schema.names) for batch in batches)
        first = next(batches, None)
        schema = to_arrow_schema(self.schema, timezone="UTC") if first is None else first.schema
        with TaskFiles(
            attempt.open_upload,
            task=task,
            schema=self._file_schema(schema),
            partition_by=self.partition_by,
            options=self.files,
            keep_empty=keep_empty,
            ansi=_is_ansi(),
        ) as files:
            for batch in chain([] if first is None else [first], batches):
                files.add(batch)

    def _file_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the files' schema: no partition columns, all nullable, Spark's schema as metadata."""
        own = [field for field in schema if field.name not in self.partition_by]
        spark_types = file_schema(self.schema, self.partition_by).json().encode()
        return nullable_schema(pa.schema(own, {SPARK_SCHEMA: spark_types}))


def _is_ansi() -> bool:
    """Return `spark.sql.ansi.enabled` of the session of the current task, which Spark sends with the task."""
    return (task_context().getLocalProperty("spark.sql.ansi.enabled") or "true").lower() == "true"
