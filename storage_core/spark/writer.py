"""Spark's side of a direct write: planning sets the job up, tasks stream pending files, the driver commits.

Planning, each task, commit and abort run in different processes; they share the job by its ids. Between
planning and commit no process of ours lives, so the job is parked meanwhile: recovery leaves it alone until
its deadline, and settles it after.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from storage_core.commit import Attempt, ExpectedTask, Job, attach_job, open_job
from storage_core.errors import ConflictError
from storage_core.ids import AttemptId, JobAttemptId, JobId, TaskId, new_attempt_id
from storage_core.settings import Settings, load_settings
from storage_core.spark.nullable import nullable_schema
from storage_core.spark.options import WriteOptions
from storage_core.spark.schema import SPARK_SCHEMA, check_columns, file_schema, recorded_columns
from storage_core.spark.task_files import TaskFiles


@dataclass(frozen=True)
class TaskCommitted(WriterCommitMessage):
    """What a task tells the driver: which attempt of it Spark let win."""

    task_id: TaskId
    attempt_id: AttemptId


@dataclass(frozen=True)
class JobAddress:
    """By what a job is found again, from any process."""

    destination: str
    job_id: JobId
    job_attempt: JobAttemptId

    def attach(self, settings: Settings) -> Job:
        """Open the job by its ids."""
        return attach_job(self.destination, self.job_id, job_attempt=self.job_attempt, settings=settings)


class PendingWriter(DataSourceArrowWriter):
    """Streams each task's rows into pending files; pickled from planning to the tasks and to the commit."""

    def __init__(
        self, job: JobAddress, schema: StructType, partition_by: Sequence[str], options: WriteOptions
    ) -> None:
        self._job = job
        self._schema = schema
        self._partition_by = tuple(partition_by)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommitted:
        """Write one task's rows and commit the task.

        Raises:
            InvalidInputError: A partition value that cannot be a folder's name.
            LockgateError: The store said no, or the job is decided already; the attempt is aborted.
        """
        context = TaskContext.get()
        if context is None:
            raise RuntimeError("a task's rows can be written inside a Spark task only")
        task = context.partitionId()
        # Where Spark gives a try up, its rows may just end, as if there were no more: half a task commits. So
        # no try counts by itself: with its own id for an input digest, it counts where Spark's choice names
        # it. Spark's number tells an operator which try it was; the random half makes it unique for good.
        attempt_id = AttemptId(f"t{context.taskAttemptId()}-{new_attempt_id()}")
        with (
            closing(self._job.attach(settings_for(self._options))) as job,
            job.attempt(TaskId(f"part-{task:05d}"), attempt_id, input_digest=attempt_id) as attempt,
        ):
            self._stream(attempt, task, iterator)
        return TaskCommitted(attempt.task_id, attempt.attempt_id)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the job with the attempts that Spark let win, or leave it to whoever commits it later.

        Raises:
            LockgateError: The job was not committed, or the outcome is not known; the message says which.
        """
        winners = [message for message in messages if isinstance(message, TaskCommitted)]
        with closing(self._job.attach(settings_for(self._options))) as job:
            if self._options.commit_by == "job":
                job.commit(winners={winner.task_id: winner.attempt_id for winner in winners})
            else:
                # The input digest of an attempt is its own id: the later commit takes exactly these.
                job.expect([ExpectedTask(task_id=w.task_id, input_digest=w.attempt_id) for w in winners])

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - perhaps all None
        """Abort the job, unless it is decided, or another commits it, who may also let Spark try again."""
        if self._options.commit_by == "job":
            with closing(self._job.attach(settings_for(self._options))) as job:
                job.abort("Spark aborted the write")

    def _stream(self, attempt: Attempt, task: int, batches: Iterator[pa.RecordBatch]) -> None:
        first = next(batches, None)
        schema = to_arrow_schema(self._schema, timezone="UTC") if first is None else first.schema
        with TaskFiles(
            attempt.open_upload,
            task=task,
            schema=self._file_schema(schema),
            partition_by=self._partition_by,
            options=self._options.files,
            keep_empty=task == 0,
        ) as files:
            for batch in chain([] if first is None else [first], batches):
                files.add(batch)

    def _file_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of the files: no partition columns, all nullable, Spark's types noted."""
        own = [field for field in schema if field.name not in self._partition_by]
        spark_types = file_schema(self._schema, self._partition_by).json().encode()
        return nullable_schema(pa.schema(own, {SPARK_SCHEMA: spark_types}))


def plan_write(schema: StructType, options: WriteOptions) -> PendingWriter:
    """Check the columns, and set the job up or find it.

    Raises:
        InvalidInputError: An option, a column or the destination cannot be.
        ConflictError: The mode is `fail` and the destination has data, or the columns do not fit it.
    """
    partition_by = check_columns(schema, options.partition_by)
    with closing(_job(schema, partition_by, options)) as job:
        address = JobAddress(job.destination, job.job_id, job.job_attempt)
    return PendingWriter(address, schema, partition_by, options)


def _job(schema: StructType, partition_by: Sequence[str], options: WriteOptions) -> Job:
    settings = settings_for(options)
    if options.job_id is not None and options.job_attempt is not None:
        return attach_job(
            options.path,
            JobId(options.job_id),
            job_attempt=JobAttemptId(options.job_attempt),
            settings=settings,
        )
    job = open_job(
        options.path,
        options.job_name or f"spark-{uuid4()}",
        mode=options.mode,
        scope=options.scope,
        committer=options.committer,
        allow_unsafe=options.allow_unsafe,
        columns=recorded_columns(schema, partition_by),
        evolve_schema=options.evolve_schema,
        settings=settings,
    )
    if job.receipt is not None:
        raise ConflictError(
            f"job {job.job_id}: an earlier try of this write was decided, and its data are published now; "
            "nothing was written; there is nothing left to do"
        )
    job.park()
    return job


def settings_for(options: WriteOptions) -> Settings:
    """Return the settings of this process, with what the write's options say."""
    settings = load_settings()
    if options.part_bytes is None:
        return settings
    return settings.model_copy(update={"part_bytes": options.part_bytes})
