"""Spark's side of a streaming write: each batch of a query is one job, published once whatever dies.

What runs where, for every batch: `plan_batches` in a process of the driver, which knows neither query nor
batch; `write` in the tasks, which know both; `commit` or `abort` in another process of the driver, which
knows the batch and what the tasks say. So the tasks set the job up, the first of them really, all under the
job attempt that planning drew for this run of the batch, and the job stays parked until the commit.

A job's name is the query's id, which lives in the checkpoint, and the batch's. That decides everything:

- a batch that Spark replays after its commit meets a committed job: nothing is written any more;
- one whose commit was cut short after the decision is brought to its end first;
- an undecided one gets a new job attempt; only attempts that this run's tasks report count, so that no task
  of a killed driver can join, whatever it still saves.
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

from lockgate.storage_core.commit import Job, attach_job, open_job
from lockgate.storage_core.errors import ConflictError, InvalidInputError
from lockgate.storage_core.ids import JobAttemptId, new_job_attempt_id
from lockgate.storage_core.spark.options import WriteOptions
from lockgate.storage_core.spark.schema.columns import check_columns, recorded_columns
from lockgate.storage_core.spark.writer.batch import JobAddress, settings_for
from lockgate.storage_core.spark.writer.task import TaskCommitted, TaskWrite, task_context
from lockgate.storage_core.stores import open_store

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
LOG: Final = logging.getLogger("lockgate.stream")


@dataclass(frozen=True)
class TaskOfBatch(WriterCommitMessage):
    """What a task tells the driver: the batch's job, and which attempt of the task Spark let win.

    Attributes:
        job: Of this run of the batch.
        committed: None where an earlier run of the batch has published it.
        published_turn: Of that earlier run.
    """

    job: JobAddress
    committed: TaskCommitted | None
    published_turn: int | None = None


@dataclass(frozen=True)
class TaskWithoutRows(WriterCommitMessage):
    """What a task tells the driver that had nothing to append: it knows of no job."""


class BatchWriter(DataSourceStreamArrowWriter):
    """Writes one run of one batch; pickled from planning to the tasks, and built anew for the commit."""

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
            ConflictError: The columns do not fit, or the batch's unfinished job was asked for something else.
            LockgateError: The store said no, or a newer run of the batch has taken it over; what this try
                wrote is aborted.
        """
        batches = (batch for batch in iterator if batch.num_rows)
        first = next(batches, None)
        if first is None and self._options.mode == "append":
            return TaskWithoutRows()  # a batch without any row costs no call, and no turn of the log
        with closing(self._open(*_query_and_batch())) as job:
            address = JobAddress(job.destination, job.job_id, self._job_attempt)
            if (published := job.receipt) is not None:
                return TaskOfBatch(address, None, published.turn)
            rows = chain([] if first is None else [first], batches)
            return TaskOfBatch(address, self._rows.run(job, rows, keep_empty=True))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Publish the batch with the attempts that Spark let win; again is harmless.

        Raises:
            LockgateError: The batch was not published, or the outcome is not known; the message says which.
                The query fails, and its restart settles it.
        """
        tasks = [message for message in messages if isinstance(message, TaskOfBatch)]
        winners = {task.committed.task_id: task.committed.attempt_id for task in tasks if task.committed}
        if not winners:
            if tasks:  # else no row was there
                _tell_skipped(batchId, tasks[0])
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

        Where no task has told of the job it stays parked: the query's restart goes on with it, or recovery
        aborts it.
        """
        for address in {message.job for message in messages if isinstance(message, TaskOfBatch)}:
            settings = settings_for(self._options)
            with closing(attach_job(address.destination, address.job_id, settings=settings)) as job:
                if job.job_attempt == address.job_attempt:
                    job.abort("Spark gave the batch up")

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
            rerun="once",
            job_attempt=self._job_attempt,
            settings=settings_for(options),
        )


def plan_batches(schema: StructType, options: WriteOptions) -> BatchWriter:
    """Check the columns, and name this run of the batch. Nothing is asked of the store.

    Raises:
        InvalidInputError: An option, a column or the destination cannot be.
    """
    rows = TaskWrite(schema, check_columns(schema, options.partition_by), options.files)
    # Tasks may run in another directory: a relative path is meant as seen from here.
    destination = open_store(options.path, settings_for(options)).url
    return BatchWriter(destination, rows, options, new_job_attempt_id())


def _tell_skipped(batch: int, task: TaskOfBatch) -> None:
    LOG.warning(
        "batch %d: job %s had published it in turn %s already; the rows of this run were not written: right "
        "after a restart; where the checkpoint was copied or edited, start the query with a new one",
        batch,
        task.job.job_id,
        task.published_turn,
    )


def _query_and_batch() -> tuple[str, str]:
    context = task_context()
    query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
    if query is None or batch is None:
        raise InvalidInputError(
            "lockgate stream: this query has no batches, which are what is published; nothing was written; "
            "use a trigger with batches, such as processingTime or availableNow"
        )
    return query, batch
