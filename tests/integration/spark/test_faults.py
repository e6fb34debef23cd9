"""After Spark's tasks, workers and drivers are killed, every row is visible once, or no row is."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lockgate import attach_job, read_manifest, recover_job
from lockgate.storage_core.clock import SystemClock
from lockgate.storage_core.commit.job_summary import list_jobs
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.errors import JobFailedError
from lockgate.storage_core.spark.frame_write import write
from lockgate.storage_core.stores import UploadInfo
from tests.support.soak import soak_only

if TYPE_CHECKING:
    import pyarrow as pa

pytestmark = [pytest.mark.integration, pytest.mark.fault]

Listing = Callable[[], list[str]]
Uploads = Callable[[], list[UploadInfo]]

ROWS = 400


class DaysLater(SystemClock):
    """A clock three days ahead, when every lease and every suspension has expired."""

    slept_s = 0.0

    def now_s(self) -> float:
        return super().now_s() + 3 * 86_400 + self.slept_s

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.slept_s

    def sleep(self, seconds: float) -> None:
        self.slept_s += seconds


def _dying(how: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a step that kills its task in the first attempt, after its rows were passed to the writer.

    It is a nested function so that it is pickled by value for Spark's workers.
    """

    def passed_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import psutil
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for batch in batches:
            yield batch
            if context.attemptNumber() > 0:
                continue
            if how == "raises":
                raise RuntimeError("the first try fails")
            if how == "exits":
                os._exit(7)
            if context.partitionId() == 0:
                # The writing worker is another child of the daemon.
                myself = psutil.Process()
                for worker in [*(w for w in myself.parent().children() if w != myself), myself]:
                    worker.kill()

    return passed_on


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
@pytest.mark.parametrize("how", [soak_only("raises"), soak_only("exits"), "is-killed-with-its-writer"])
def test_a_killed_task_is_retried_and_its_rows_arrive_once(
    spark: SparkSession, destination: str, open_uploads: Uploads, seen: Listing, how: str
) -> None:
    rows = spark.range(ROWS, numPartitions=2).selectExpr("id", "id % 5 AS day")
    frame = rows.mapInArrow(_dying(how), "id long, day long")
    receipt = write(frame, destination, partition_by=["day"], sort_within_partitions=False)
    assert receipt is not None
    assert receipt.rows == ROWS
    found = spark.read.parquet(destination).select("id").collect()
    assert sorted(row.id for row in found) == list(range(ROWS))
    assert seen() == sorted(read_manifest(destination).files)
    assert open_uploads() == []


def test_a_task_that_never_succeeds_leaves_nothing(
    spark: SparkSession, destination: str, open_uploads: Uploads, seen: Listing
) -> None:
    frame = spark.range(ROWS, numPartitions=2).selectExpr("if(id = 399, raise_error('broken'), id) AS id")
    with pytest.raises(PySparkException, match="broken"):
        write(frame.selectExpr("cast(id AS long)"), destination)
    assert seen() == []
    assert open_uploads() == []
    (job,) = list_jobs(destination)
    assert job.phase is JobPhase.FAILED


def _breaking() -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a step that fails every attempt of a task after its rows were passed to the writer."""

    def passed_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        raise RuntimeError("it always fails")

    return passed_on


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
@pytest.mark.soak
def test_a_job_abandoned_by_spark_cannot_be_committed_by_another_process(
    spark: SparkSession, destination: str, open_uploads: Uploads, seen: Listing
) -> None:
    # There are several Arrow batches and the writer gets all but the last, so it saves half a task.
    # Another task could still write when Spark abandons the job.
    frame = spark.range(100_000, numPartitions=1).mapInArrow(_breaking(), "id long")
    writer = frame.write.format("lockgate").mode("append").options(commit="task", jobName="gated")
    with pytest.raises(PySparkException, match="it always fails"):
        writer.save(destination)

    with pytest.raises(JobFailedError):
        attach_job(destination, "gated-g1").commit()

    assert seen() == []
    assert open_uploads() == []
    (job,) = list_jobs(destination)
    assert job.phase is JobPhase.FAILED


DRIVER = """
from lockgate.storage_core.spark.session import spark_session
from lockgate.storage_core.spark.frame_write import write
import sys

destination, how = sys.argv[1:]
spark = spark_session("killed", master="local[2]")
spark.sparkContext.setLogLevel("OFF")
frame = spark.range(400, numPartitions=4).selectExpr("id", "id % 5 AS day")
if how == "write":
    write(frame, destination, job_name="nightly", partition_by=["day"])
else:
    writer = frame.write.format("lockgate").mode("append")
    writer.options(jobName="nightly", partitionBy="day").save(destination)
"""


def _run_driver(destination: str, how: str, failpoint: str) -> int:
    environment = {**os.environ, "LOCKGATE_FAILPOINTS": failpoint, "PYTHONWARNINGS": "default"}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(DRIVER), destination, how],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=240,
        check=False,
    ).returncode


@pytest.mark.parametrize(
    ("point", "committed"),
    [
        soak_only("decide.create.before=kill", False),
        soak_only("complete.complete.after=kill@7", True),
        soak_only("outcome.create.after=kill", True),
    ],
)
def test_recovery_finishes_the_job_of_a_driver_killed_in_its_job_commit(
    spark: SparkSession, destination: str, open_uploads: Uploads, point: str, committed: bool
) -> None:
    assert _run_driver(destination, "write", point) == -9
    assert len(open_uploads()) > 0 or committed

    (job,) = list_jobs(destination)
    result = recover_job(destination, job.job_id, clock=DaysLater())

    assert result.ended
    assert open_uploads() == []
    assert sorted(map(str, Path(destination).glob("day=*/*.parquet"))) == sorted(
        f"{destination}/{key}" for key in read_manifest(destination).files
    )
    if committed:
        found = spark.read.parquet(destination).select("id").collect()
        assert sorted(row.id for row in found) == list(range(ROWS))
        assert (Path(destination) / "_SUCCESS").is_file()
    else:
        assert read_manifest(destination).files == {}


def test_a_job_is_committed_although_spark_calls_abort_after_the_decision(
    spark: SparkSession, destination: str, open_uploads: Uploads
) -> None:
    # Spark commits a Python source in a separate process; that process dies and Spark aborts.
    assert _run_driver(destination, "save", "complete.complete.after=kill@3") != 0
    (job,) = list_jobs(destination)
    assert job.phase in {JobPhase.DECIDED, JobPhase.PUBLISHED, JobPhase.COMMITTED}

    recover_job(destination, job.job_id, clock=DaysLater())

    found = spark.read.parquet(destination).select("id").collect()
    assert sorted(row.id for row in found) == list(range(ROWS))
    assert open_uploads() == []


@pytest.mark.soak
def test_a_commit_process_killed_before_the_decision_leaves_nothing(
    destination: str, seen: Listing, open_uploads: Uploads
) -> None:
    assert _run_driver(destination, "save", "decide.create.before=kill") != 0
    assert seen() == []
    (job,) = list_jobs(destination)
    recover_job(destination, job.job_id, clock=DaysLater())
    (job,) = list_jobs(destination)
    assert job.phase is JobPhase.FAILED
    assert open_uploads() == []


@pytest.mark.soak
def test_a_retry_of_a_killed_driver_finds_its_own_commit(
    spark: SparkSession, destination: str, open_uploads: Uploads
) -> None:
    assert _run_driver(destination, "write", "complete.complete.after=kill@3") == -9
    frame = spark.range(ROWS).selectExpr("id", "id % 5 AS day")
    receipt = write(frame, destination, job_name="nightly", partition_by=["day"])
    assert receipt is not None
    assert (receipt.job_id, receipt.rows, receipt.via) == ("nightly-g1", ROWS, None)
    assert read_manifest(destination).rows == ROWS
    assert open_uploads() == []
