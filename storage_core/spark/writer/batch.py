"""Driver side of a batch write: planning sets up the job, tasks stream pending files, the driver commits.

Planning, each task, commit and abort run in different processes and share the job by its ids. No process of
Lockgate runs between planning and commit, so the job is suspended: recovery ignores it until its deadline.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from lockgate.storage_core.commit.job import Job
from lockgate.storage_core.commit.open_or_attach import attach_job, open_job
from lockgate.storage_core.commit.records.expected_tasks import ExpectedTask
from lockgate.storage_core.errors import ConflictError
from lockgate.storage_core.ids import JobAttemptId, JobId
from lockgate.storage_core.settings import Settings, load_settings
from lockgate.storage_core.spark.schema.columns import check_columns, recorded_columns
from lockgate.storage_core.spark.source_options import WriteOptions
from lockgate.storage_core.spark.writer.task_write import TaskCommitted, TaskWrite


@dataclass(frozen=True)
class JobAddress:
    """Ids by which any process can open a job."""

    destination: str
    job_id: JobId
    job_attempt: JobAttemptId

    def attach(self, settings: Settings) -> Job:
        """Open the job by its ids."""
        return attach_job(self.destination, self.job_id, job_attempt=self.job_attempt, settings=settings)


class PendingWriter(DataSourceArrowWriter):
    """Streams each task's rows to pending files; pickled from planning to the tasks and the commit."""

    def __init__(self, job: JobAddress, rows: TaskWrite, options: WriteOptions) -> None:
        self._job = job
        self._rows = rows
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommitted:
        """Write one task's rows and commit the task.

        Raises:
            InvalidInputError: A partition value cannot be a folder's name.
            LockgateError: The store failed, or the job is already decided; the attempt is aborted.
        """
        with closing(self._job.attach(settings_for(self._options))) as job:
            return self._rows.run(job, iterator, keep_empty=True)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the job with the attempts that Spark selected, or freeze them for a later commit.

        Raises:
            LockgateError: The job was not committed, or the outcome is unknown; the message states which.
        """
        winners = [message for message in messages if isinstance(message, TaskCommitted)]
        with closing(self._job.attach(settings_for(self._options))) as job:
            if self._options.commit_by == "job":
                job.commit(winners={winner.task_id: winner.attempt_id for winner in winners})
            else:
                # The input digest of an attempt is its id, so the later commit takes exactly these attempts.
                job.expect([ExpectedTask(task_id=w.task_id, input_digest=w.attempt_id) for w in winners])

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - may be all None
        """Abort the job, unless it is decided, or another process set it up and may retry the write."""
        if self._options.commit_by == "job" or self._options.job_attempt is None:
            with closing(self._job.attach(settings_for(self._options))) as job:
                job.abort("Spark aborted the write")


def plan_write(schema: StructType, options: WriteOptions) -> PendingWriter:
    """Check the columns, and set up the job or find it.

    Raises:
        InvalidInputError: An option, a column or the destination is invalid.
        ConflictError: The mode is `fail` and the destination has data, or the columns do not fit.
    """
    rows = TaskWrite(check_columns(schema, options.partition_by), options.partition_by, options.files)
    with closing(_job(rows.schema, rows.partition_by, options)) as job:
        address = JobAddress(job.destination, job.job_id, job.job_attempt)
    return PendingWriter(address, rows, options)


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
        tables=options.tables,
        settings=settings,
    )
    if job.receipt is not None:
        raise ConflictError(
            f"job {job.job_id}: an earlier try of this write has already published its data; "
            "nothing was written; there is nothing left to do"
        )
    job.suspend()
    return job


def settings_for(options: WriteOptions) -> Settings:
    """Return the settings of this process, with the part size from the options."""
    return load_settings() if options.part_bytes is None else load_settings(part_bytes=options.part_bytes)
