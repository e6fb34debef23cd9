"""One Spark task's rows become one committed attempt, for batch and streaming writes alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from lockgate.storage_core.commit import Attempt, Job
from lockgate.storage_core.ids import AttemptId, TaskId, new_attempt_id
from lockgate.storage_core.spark.options import FileOptions
from lockgate.storage_core.spark.schema.columns import SPARK_SCHEMA, file_schema
from lockgate.storage_core.spark.schema.nullable import nullable_schema
from lockgate.storage_core.spark.writer.partition_files import TaskFiles


@dataclass(frozen=True)
class TaskCommitted(WriterCommitMessage):
    """What a task tells the driver: which attempt of it Spark let win."""

    task_id: TaskId
    attempt_id: AttemptId


def task_context() -> TaskContext:
    """Return the Spark task that this process works for.

    Raises:
        RuntimeError: It works for none.
    """
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("a task's rows can be written inside a Spark task only")
    return context


@dataclass(frozen=True)
class TaskWrite:
    """How a task's rows are written; pickled from planning to the tasks.

    Attributes:
        schema: Of the rows.
        partition_by: Columns that become folders, in this order.
        files: How rows become files.
    """

    schema: StructType
    partition_by: tuple[str, ...]
    files: FileOptions

    def run(self, job: Job, batches: Iterator[pa.RecordBatch], *, keep_empty: bool) -> TaskCommitted:
        """Write the rows of this process's task and commit it.

        Args:
            job: Attached with the job attempt of the task's driver.
            batches: The task's rows.
            keep_empty: Where no task has rows and nothing is partitioned, leave a file of columns only.

        Raises:
            InvalidInputError: A partition value that cannot be a folder's name.
            LockgateError: The store said no, or the job is decided already; the attempt is aborted.
        """
        context = task_context()
        task = context.partitionId()
        # Where Spark gives a try up, its rows may just end, as if there were no more: half a task commits. So
        # no try counts by itself: with its own id for an input digest, it counts where Spark's choice names
        # it. Spark's number tells an operator which try it was; the random half makes it unique for good.
        attempt_id = AttemptId(f"t{context.taskAttemptId()}-{new_attempt_id()}")
        with job.attempt(TaskId(f"part-{task:05d}"), attempt_id, input_digest=attempt_id) as attempt:
            self._stream(attempt, task, batches, keep_empty=keep_empty and task == 0)
        return TaskCommitted(attempt.task_id, attempt.attempt_id)

    def _stream(
        self, attempt: Attempt, task: int, batches: Iterator[pa.RecordBatch], *, keep_empty: bool
    ) -> None:
        first = next(batches, None)
        schema = to_arrow_schema(self.schema, timezone="UTC") if first is None else first.schema
        with TaskFiles(
            attempt.open_upload,
            task=task,
            schema=self._file_schema(schema),
            partition_by=self.partition_by,
            options=self.files,
            keep_empty=keep_empty,
        ) as files:
            for batch in chain([] if first is None else [first], batches):
                files.add(batch)

    def _file_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of the files: no partition columns, all nullable, Spark's types noted."""
        own = [field for field in schema if field.name not in self.partition_by]
        spark_types = file_schema(self.schema, self.partition_by).json().encode()
        return nullable_schema(pa.schema(own, {SPARK_SCHEMA: spark_types}))
