"""A streaming query without Spark: its runs, tasks and batches, called as Spark calls them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import LongType, StructType

from lockgate import read_manifest
from lockgate.storage_core.commit.job_summary import list_jobs
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.spark.source_options import stream_options
from lockgate.storage_core.spark.writer.stream import BATCH_ID, QUERY_ID, BatchWriter, plan_batches
from lockgate.storage_core.stores import open_store

SALES = StructType().add("id", LongType())
QUERY = "11111111-2222-3333-4444-555555555555"


@dataclass
class SparkTask:
    """The context of a task in its process."""

    partition: int
    number: int
    properties: dict[str, str]

    def partitionId(self) -> int:  # noqa: N802 - Spark's
        return self.partition

    def taskAttemptId(self) -> int:  # noqa: N802 - Spark's
        return self.number

    def getLocalProperty(self, key: str) -> str | None:  # noqa: N802 - Spark's
        return self.properties.get(key)


@dataclass
class TasksHere:
    """Replaces Spark's `TaskContext` in this process and returns its current task."""

    now: SparkTask | None = None

    def get(self) -> SparkTask | None:
        return self.now


@dataclass
class Stream:
    """A query that writes a destination, and what a user can see of that."""

    destination: str
    tasks: TasksHere
    numbers: Iterator[int] = field(default_factory=count)

    def run(self, *, schema: StructType = SALES, overwrite: bool = False, **options: str) -> BatchWriter:
        """Plan one run of a batch, as a driver does before the batch's tasks start."""
        given = {"path": self.destination, "queryname": "sales", "checkpointlocation": "ck", **options}
        return plan_batches(schema, stream_options(given, overwrite=overwrite))

    def task(
        self,
        run: BatchWriter,
        partition: int,
        rows: Sequence[int],
        *,
        batch: int = 0,
        on_the_way: Callable[[], object] = lambda: None,
    ) -> WriterCommitMessage:
        """Try a task once; when its first row has arrived, `on_the_way` happens elsewhere."""
        here = SparkTask(partition, next(self.numbers), {QUERY_ID: QUERY, BATCH_ID: str(batch)})

        def batches() -> Iterator[pa.RecordBatch]:
            yield pa.record_batch({"id": pa.array(rows[:1], pa.int64())})
            on_the_way()
            self.tasks.now = here
            yield pa.record_batch({"id": pa.array(rows[1:], pa.int64())})

        self.tasks.now = here
        return run.write(batches())

    def tasks_of(self, run: BatchWriter, rows: Sequence[int], *, batch: int = 0) -> list[WriterCommitMessage]:
        """Run both tasks of a batch, each with half of the rows."""
        half = len(rows) // 2
        return [
            self.task(run, 0, rows[:half], batch=batch),
            self.task(run, 1, rows[half:], batch=batch),
        ]

    def publish(self, rows: Sequence[int], *, batch: int = 0, overwrite: bool = False) -> None:
        """Run a batch from its planning to its commit."""
        run = self.run(overwrite=overwrite)
        run.commit(self.tasks_of(run, rows, batch=batch), batch)

    def ids(self) -> list[int]:
        """The rows that readers of the log see."""
        paths = (Path(self.destination, key) for key in read_manifest(self.destination).files)
        return sorted(row for path in paths for row in pq.read_table(path)["id"].to_pylist())

    def listed_ids(self) -> list[int]:
        """The rows that readers of a listing see."""
        paths = Path(self.destination).glob("*.parquet")
        return sorted(row for path in paths for row in pq.read_table(path)["id"].to_pylist())

    def jobs(self) -> list[tuple[str, JobPhase | None]]:
        """Ids, without the query's, and phases of all jobs."""
        found = list_jobs(self.destination)
        return [(job.job_id.removeprefix(f"stream-{QUERY}-"), job.phase) for job in found]

    def open_uploads(self) -> list[str]:
        """Keys of the uploads that are open."""
        return [info.key for page in open_store(self.destination).upload_pages() for info in page]
