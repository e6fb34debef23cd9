"""Streaming writes: each batch of a query is one job, which is published exactly once despite crashes.

For every batch, `plan_batches` runs in a driver process that knows neither query nor batch; `write` runs in
the tasks, which know both; `commit` or `abort` runs in another driver process, which knows the batch and the
messages of the tasks. Therefore the tasks set up the job: the first one creates it, all use the job attempt
that planning generated for this run of the batch, and the job stays suspended until the commit.

The name of a job consists of the query id, which is stored in the checkpoint, and the batch id:

- If Spark replays a batch after its commit, the job is already committed and nothing is written.
- If the commit was interrupted after the decision, it is finished first.
- An undecided batch gets a new job attempt. Only attempts that this run's tasks report are selected, so that
  no task of a killed driver can join.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from lockgate.storage_core.commit.job import Job
from lockgate.storage_core.commit.open_or_attach import attach_job, open_job
from lockgate.storage_core.errors import ConflictError, InvalidInputError
from lockgate.storage_core.ids import JobAttemptId, new_job_attempt_id
from lockgate.storage_core.spark.schema.columns import check_columns, recorded_columns
from lockgate.storage_core.spark.source_options import WriteOptions
from lockgate.storage_core.spark.writer.batch import JobAddress, settings_for
from lockgate.storage_core.spark.writer.task_write import TaskCommitted, TaskWrite, task_context
from lockgate.storage_core.stores import open_store

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
LOG: Final = logging.getLogger("lockgate.stream")


@dataclass(frozen=True)
class TaskOfBatch(WriterCommitMessage):
    """Message of a task to the driver: the batch's job and the task's committed attempt.

    Attributes:
        job: Job of this run of the batch.
        committed: Committed attempt; None if an earlier run has published the batch.
        published_turn: Turn of that earlier run.
    """

    job: JobAddress
    committed: TaskCommitted | None
    published_turn: int | None = None


@dataclass(frozen=True)
class TaskWithoutRows(WriterCommitMessage):
    """Message of a task without rows to append, which has opened no job."""


class BatchWriter(DataSourceStreamArrowWriter):
    """Writes one run of one batch; pickled from planning to the tasks, and created again for the commit."""

    def __init__(
        self, destination: str, rows: TaskWrite, options: WriteOptions, job_attempt: JobAttemptId
    ) -> None:
        self._destination = destination
        self._rows = rows
        self._options = options
        self._job_attempt = job_attempt

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's rows and commit the task, unless the batch was committed before.

        Raises:
            InvalidInputError: The trigger is continuous, or a partition value cannot be a folder's name.
            ConflictError: The columns do not fit, or the batch's unfinished job has another specification.
            LockgateError: The store failed, or a newer run of the batch has taken it over; the attempt is
                aborted.
        """
        batches = (batch for batch in iterator if batch.num_rows)
        first = next(batches, None)
        if first is None and self._options.mode == "append":
            return TaskWithoutRows()  # a batch without rows needs no store call and no turn of the log
        with closing(self._open(*_query_and_batch())) as job:
            address = JobAddress(job.destination, job.job_id, self._job_attempt)
            if (published := job.receipt) is not None:
                return TaskOfBatch(address, None, published.turn)
            rows = chain([] if first is None else [first], batches)
            return TaskOfBatch(address, self._rows.run(job, rows, keep_empty=True))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Publish the batch with the attempts that Spark selected; idempotent.

        Raises:
            LockgateError: The batch was not published, or the outcome is unknown; the message states which.
                The query fails, and its restart finishes the batch.
        """
        tasks = [message for message in messages if isinstance(message, TaskOfBatch)]
        winners = {task.committed.task_id: task.committed.attempt_id for task in tasks if task.committed}
        if not winners:
            if tasks:  # otherwise the batch has no rows
                _log_skipped(batchId, tasks[0])
            return
        jobs = {task.job for task in tasks}
        if len(jobs) > 1:
            names = ", ".join(sorted(job.job_id for job in jobs))
            raise ConflictError(
                f"batch {batchId}: its job was aborted while its tasks ran, and they wrote to {names}; "
                "nothing was published; start the query again"
            )
        with closing(jobs.pop().attach(settings_for(self._options))) as job:
            job.commit(winners=winners)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        """Abort the batch's job, unless it is decided or a newer run of the batch has it.

        A job that no task has reported stays suspended: the restarted query continues it, or recovery aborts
        it.
        """
        for address in {message.job for message in messages if isinstance(message, TaskOfBatch)}:
            settings = settings_for(self._options)
            with closing(attach_job(address.destination, address.job_id, settings=settings)) as job:
                if job.job_attempt == address.job_attempt:
                    job.abort("Spark aborted the batch")

    def _open(self, query: str, batch: str) -> Job:
        options, rows = self._options, self._rows
        return open_job(
            self._destination,
            f"stream-{query}-batch-{batch}",
            mode=options.mode,
            scope=options.scope,
            committer=options.committer,
            allow_unsafe=options.allow_unsafe,
            description=f"batch {batch} of streaming query {options.query_name or query}",
            columns=recorded_columns(rows.schema, rows.partition_by),
            evolve_schema=options.evolve_schema,
            tables=options.tables,
            rerun="once",
            job_attempt=self._job_attempt,
            settings=settings_for(options),
        )


def plan_batches(schema: StructType, options: WriteOptions) -> BatchWriter:
    """Check the columns, and generate the job attempt of this run, without a request to the store.

    Raises:
        InvalidInputError: An option, a column or the destination is invalid.
    """
    rows = TaskWrite(check_columns(schema, options.partition_by), options.partition_by, options.files)
    # Resolve a relative path here, because tasks may run in another directory.
    destination = open_store(options.path, settings_for(options)).url
    return BatchWriter(destination, rows, options, new_job_attempt_id())


def _log_skipped(batch: int, task: TaskOfBatch) -> None:
    LOG.warning(
        "batch %d: job %s has already published it in turn %s; the rows of this run were not written; this "
        "is expected after a restart; if the checkpoint was copied or edited, start the query with a new one",
        batch,
        task.job.job_id,
        task.published_turn,
    )


def _query_and_batch() -> tuple[str, str]:
    context = task_context()
    query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
    if query is None or batch is None:
        raise InvalidInputError(
            "lockgate stream: this query has no batches, and only batches are published; nothing was "
            "written; use a trigger with batches, such as processingTime or availableNow"
        )
    return query, batch
