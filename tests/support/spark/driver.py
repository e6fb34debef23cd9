"""A Spark driver in its own process, controlled by lines of JSON.

Spark's Python workers get the environment that the driver's JVM was started with, and one process has one
JVM: what needs another environment, another master or a death needs another process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any, Final, Literal

from pyspark import TaskContext

from lockgate.storage_core.spark.adopted_files import AdoptedFiles
from lockgate.storage_core.spark.data_source import read
from lockgate.storage_core.spark.frame_write import Via, WriteMode, write
from lockgate.storage_core.spark.session import spark_session
from tests.support.spark import beside_spark
from tests.support.spark.accidents import accident as step_with_accident
from tests.support.spark.accidents import await_that
from tests.support.spark.python_daemon import DAEMON
from tests.support.spark.settings import session_settings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

How = Literal["write", "save"]
"""By `lockgate.storage_core.spark.frame_write`, or by `format("lockgate")` alone."""

DAYS: Final = 5
QUICK: Final = {"spark.driver.memory": "512m", "spark.sql.shuffle.partitions": "2", **DAEMON}


class DriverDiedError(Exception):
    """The driver ended before it answered.

    Attributes:
        returncode: Exit code of its process; -9 if it was killed.
    """

    def __init__(self, returncode: int) -> None:
        super().__init__(f"the driver ended with {returncode} before it answered")
        self.returncode = returncode


class Driver:
    """The end of a driver process that a test holds."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, call: str, **arguments: Any) -> Any:
        """Make the driver run a call and return its result.

        Raises:
            DriverDiedError: The driver ended before it answered.
            RuntimeError: The call failed; the message is the driver's.
        """
        commands, answers = _pipes(self._process)
        try:
            print(json.dumps({"call": call, **arguments}), file=commands, flush=True)
        except BrokenPipeError:
            raise DriverDiedError(self._process.wait()) from None
        line = answers.readline()
        if not line:
            raise DriverDiedError(self._process.wait())
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["result"]


@contextmanager
def spark_driver(
    log: Path,
    *,
    master: str = "local[2]",
    config: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Driver]:
    """Start a driver with more settings and more environment than this process has; end it afterwards."""
    with (
        log.open("w") as noise,
        subprocess.Popen(
            [sys.executable, "-m", __name__, master, json.dumps({**QUICK, **(config or {})})],
            env={**os.environ, "PYTHONWARNINGS": "ignore", **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=noise,
            text=True,
        ) as process,
    ):
        try:
            yield Driver(process)
        finally:
            _pipes(process)[0].close()  # it stops Spark at the end of its input
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()


def _pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


def write_days(
    spark: SparkSession,
    *,
    destination: str,
    how: How,
    rows: int,
    accident: list[Any] | None = None,
    options: Mapping[str, str] | None = None,
    via: Literal["auto"] | Via = "auto",
    mode: WriteMode = "append",
    job_name: str = "nightly",
    dies: str = "",
    settings: Mapping[str, str] = MappingProxyType({}),
) -> int | None:
    """Write numbers by day, over two tasks; return the rows of the receipt where there is one.

    Spark's own writer sorts the rows of a task first if there are folders: with an accident there are none.
    `dies` is the call of `AdoptedFiles` at which the driver kills itself.
    """
    frame: DataFrame = spark.range(rows, numPartitions=2).selectExpr("id", f"id % {DAYS} AS day")
    if accident is not None:
        frame = frame.mapInArrow(step_with_accident(*accident), "id long, day long")
    if dies:
        setattr(AdoptedFiles, dies, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    if how == "write":
        with session_settings(spark, settings):
            receipt = write(
                frame,
                destination,
                partition_by=[] if accident and via == "spark" else ["day"],
                job_name=job_name,
                sort_within_partitions=via == "spark",
                options=options,
                via=via,
                mode=mode,
            )
        assert receipt is None or via in {"auto", receipt.via}
        return None if receipt is None else receipt.rows
    writer = frame.write.format("lockgate").mode("append").options(**(options or {}))
    writer.options(jobName="nightly", partitionBy="day").save(destination)
    return None


def count_days(spark: SparkSession, *, destination: str, by_spark: bool = False) -> list[list[int]]:
    """Read a destination by its log; return day and rows."""
    counted = read(spark, destination, by_spark=by_spark).groupBy("day").count().orderBy("day")
    return [[row["day"], row["count"]] for row in counted.collect()]


def write_by_spark(spark: SparkSession, *, destinations: list[str]) -> list[list[Any]]:
    """Write to all destinations at once with Spark's own writer; return what each has and what Spark wrote.

    The first task of each fails once, after its rows, and the session keeps its own headers.
    """

    def one(destination: str) -> list[Any]:
        frame = spark.range(1000, numPartitions=4).selectExpr(
            "id", f"id % {DAYS} AS day", "string(id) AS text"
        )
        failing = frame.mapInArrow(fails_once, frame.schema)
        options = {"parquet.bloom.filter.enabled#id": "true", "maxRecordsPerFile": "100"}
        receipt = write(
            failing, destination, partition_by=["day"], via="spark", compression="zstd", options=options
        )
        assert receipt is not None
        found = sorted(map(list, read(spark, destination).select("id", "day", "text").collect()))
        assert found == sorted(map(list, frame.collect()))
        return [receipt.via, receipt.rows, receipt.files]

    with ThreadPoolExecutor() as pool:
        return list(pool.map(one, destinations))


def write_large(spark: SparkSession, *, destination: str, rows: int) -> list[int]:
    """Write one file of several parts of 5 MiB with Spark's own writer; return its rows by reading it."""
    frame = spark.range(rows, numPartitions=1).selectExpr("id", "rand() AS price")
    write(frame, destination, via="spark", options={"partBytes": 5 * 1024 * 1024})
    return count_ids(spark, destination=destination)


def fails_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass rows on; the first try of partition 0 then fails."""
    yield from batches
    context = TaskContext.get()
    assert context is not None
    if context.partitionId() == 0 and context.attemptNumber() == 0:
        raise RuntimeError("the first try fails")


def count_ids(spark: SparkSession, *, destination: str) -> list[int]:
    """Read a destination; return the number of rows and of ids, the least and the greatest id."""
    counts = ["count(1)", "count(DISTINCT id)", "min(id)", "max(id)"]
    return list(read(spark, destination).selectExpr(*counts).collect()[0])


def settings_of(spark: SparkSession, *, names: list[str]) -> list[str | None]:
    """Return settings of the session."""
    return [spark.conf.get(name, None) for name in names]


def _await_executors(spark: SparkSession, *, count: int) -> None:
    """Wait until so many executors are there; a killed one is replaced after a while."""
    status = spark.sparkContext._jsc.sc().getExecutorMemoryStatus
    await_that(lambda: status().size() == count + 1, "executors")  # the driver is counted too


CALLS: Final = {
    "write": write_days,
    "write_by_spark": write_by_spark,
    "write_large": write_large,
    "days": count_days,
    "ids": count_ids,
    "settings": settings_of,
    "write_matrix": beside_spark.write_matrix,
    "write_encrypted": beside_spark.write_encrypted,
    "write_while_executors_leave": beside_spark.write_while_executors_leave,
    "success": beside_spark.success_for_hadoop,
    "await_executors": _await_executors,
}


def main() -> None:
    """Start Spark, and answer until standard input ends."""
    spark = spark_session("driver", master=sys.argv[1], config=json.loads(sys.argv[2]))
    # The JVM writes to standard output, too.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"result": CALLS[request.pop("call")](spark, **request)}
        except Exception as error:  # noqa: BLE001 - reported to the test
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
