"""`writeStream.format("lockgate")` in real Spark writes every batch once, whichever process dies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

import psutil
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from lockgate import read_manifest
from lockgate.storage_core.commit.job_summary import list_jobs
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.spark.data_source import read
from lockgate.storage_core.spark.frame_write import write
from tests.support.soak import sample
from tests.support.spark.stream_deaths import DEATHS, ENTERED, RETURNED, Death
from tests.support.spark.stream_driver import READY
from tests.support.spark.stream_place import ROWS, Place

if TYPE_CHECKING:
    import pyarrow as pa

pytestmark = pytest.mark.integration

TWO_BATCHES: Final = list(range(2 * ROWS))
THREE_BATCHES: Final = list(range(3 * ROWS))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Return a place with two batches of input."""
    place = Place(tmp_path)
    place.feed(0, 1)
    return place


def test_every_batch_is_a_job_and_a_restart_continues_after_the_last_one(
    spark: SparkSession, place: Place
) -> None:
    place.run(spark, partitionBy="day", queryName="sales")
    assert place.ids(spark) == TWO_BATCHES
    place.feed(2)
    place.run(spark, partitionBy="day", queryName="sales")
    assert place.ids(spark) == place.listed_ids(spark) == THREE_BATCHES
    assert {key.partition("/")[0] for key in place.listed()} == {"day=0", "day=1"}
    assert read_manifest(place.destination).turn == 3
    jobs = list(list_jobs(place.destination))
    assert {job.phase for job in jobs} == {JobPhase.COMMITTED}
    query = json.loads((place.checkpoint / "metadata").read_text())["id"]
    assert [job.job_id for job in jobs] == [f"stream-{query}-batch-{batch}-g1" for batch in range(3)]


def test_a_replayed_batch_is_published_once(spark: SparkSession, place: Place) -> None:
    place.run(spark)
    before = read_manifest(place.destination)
    place.forget_last_commit()
    place.feed(2)

    place.run(spark, compression="zstd")

    assert place.ids(spark) == place.listed_ids(spark) == THREE_BATCHES
    after = read_manifest(place.destination)
    assert before.files.items() <= after.files.items()
    assert after.turn == before.turn + 1
    assert place.open_uploads() == []


def test_sparks_own_writer_publishes_each_batch_once_in_foreach_batch(
    spark: SparkSession, place: Place
) -> None:
    ways: list[object] = []

    def save(batch: DataFrame, number: int) -> None:
        receipt = write(batch, place.destination, job_name=f"sales-batch-{number}", partition_by=["day"])
        ways.append(receipt and receipt.via)

    def run() -> None:
        writer = place.rows(spark).writeStream.foreachBatch(save).trigger(availableNow=True)
        writer.option("checkpointLocation", str(place.checkpoint)).start().awaitTermination()

    run()
    place.forget_last_commit()
    place.feed(2)
    run()
    assert place.ids(spark) == place.listed_ids(spark) == THREE_BATCHES
    assert ways == ["spark"] * 4  # the second batch twice
    assert place.open_uploads() == []


def test_complete_output_replaces_the_previous_result(spark: SparkSession, place: Place) -> None:
    def counted() -> dict[int, int]:
        return {row["day"]: row["count"] for row in read(spark, place.destination).collect()}

    place.run(spark, place.rows(spark).groupBy("day").count(), "complete")
    assert counted() == {0: ROWS, 1: ROWS}
    place.forget_last_commit()
    place.feed(2)
    place.run(spark, place.rows(spark).groupBy("day").count(), "complete")
    assert counted() == {0: 3 * ROWS // 2, 1: 3 * ROWS // 2}
    assert spark.read.parquet(place.destination).count() == 2


@pytest.mark.parametrize(
    ("output_mode", "options", "message"),
    [
        ("update", {}, "lockgate does not support Update mode"),
        ("append", {"jobName": "nightly"}, "every batch is a separate job, named by the checkpoint"),
        ("append", {"partitionBy": "month"}, "partition column 'month' does not exist"),
    ],
)
def test_invalid_options_are_refused_before_anything_is_created(
    spark: SparkSession, place: Place, output_mode: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(StreamingQueryException, match=message):
        place.run(spark, None, output_mode, **options)
    assert not Path(place.destination).exists()


def test_a_batch_without_rows_publishes_nothing(spark: SparkSession, place: Place) -> None:
    place.run(spark, place.rows(spark).where(f"id >= {ROWS}"))
    assert place.ids(spark) == TWO_BATCHES[ROWS:]
    assert read_manifest(place.destination).turn == 1
    assert {path.name for path in place.checkpoint.glob("commits/[0-9]*")} == {"0", "1"}


@pytest.mark.soak
def test_two_streams_write_to_one_destination(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    other = Place(tmp_path / "other")
    other.feed(5, 6)
    query = place.start(spark, other.rows(spark), checkpointLocation=str(other.checkpoint))
    place.run(spark)
    query.awaitTermination()
    assert place.ids(spark) == [*TWO_BATCHES, *range(5 * ROWS, 7 * ROWS)]
    assert read_manifest(place.destination).turn == 4
    assert place.open_uploads() == []


def _failing(tries: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a step whose first attempts fail after their rows were passed to the writer."""

    def passed_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        yield from batches
        if context.attemptNumber() < tries:
            raise RuntimeError("this try fails")

    return passed_on


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
def test_a_failed_task_is_retried_and_its_rows_arrive_once(spark: SparkSession, place: Place) -> None:
    place.run(spark, place.rows(spark).repartition(2).mapInArrow(_failing(1), "id long, day long"))
    assert place.ids(spark) == place.listed_ids(spark) == TWO_BATCHES
    assert place.open_uploads() == []


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
@pytest.mark.soak
def test_a_batch_given_up_by_spark_leaves_nothing_and_a_restart_writes_it(
    spark: SparkSession, place: Place
) -> None:
    with pytest.raises(StreamingQueryException, match="this try fails"):
        place.run(spark, place.rows(spark).mapInArrow(_failing(9), "id long, day long"))
    assert place.listed() == []
    place.run(spark)
    assert place.ids(spark) == place.listed_ids(spark) == TWO_BATCHES
    assert place.open_uploads() == []


@pytest.mark.soak
def test_a_reader_of_the_log_sees_only_whole_batches_while_the_query_runs(
    spark: SparkSession, place: Place
) -> None:
    place.run(spark)
    place.feed(*range(2, 6))
    counts, ended = [], Event()

    def look() -> None:
        while not ended.is_set():
            counts.append(read(spark, place.destination).count())

    reader = Thread(target=look)
    reader.start()
    try:
        place.run(spark, place.rows(spark).repartition(3))
    finally:
        ended.set()
        reader.join()
    counts.append(read(spark, place.destination).count())
    assert counts == sorted(counts)
    assert {count % ROWS for count in counts} == {0}
    assert counts[-1] == 6 * ROWS


DRIVER_DIES: Final = (
    ENTERED,
    "task-write.part.after",
    "task-commit.create.after",
    "decide.create.before",
    "decide.create.after",
    "complete.complete.after",
    "outcome.create.after",
    RETURNED,
)
COMMIT_DIES: Final = "complete.complete.before"
"""Here only the process that commits dies: Spark lives, and aborts the batch, whose commit is decided."""


@pytest.mark.fault
@pytest.mark.soak
def test_a_driver_killed_at_any_point_and_restarted_writes_every_row_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    points = (*sample(DRIVER_DIES, every=5), COMMIT_DIES)
    places = {point: Place(tmp_path / point) for point in points}
    for place in places.values():
        place.feed(0, 1)
    _kill_driver(places, tmp_path / "log")

    for point, place in places.items():
        assert place.ids(spark) in (TWO_BATCHES[:ROWS], TWO_BATCHES), point
        place.feed(2)
    for query in [place.start(spark) for place in places.values()]:
        query.awaitTermination()
    for point, place in places.items():
        assert place.ids(spark) == place.listed_ids(spark) == THREE_BATCHES, point
        assert place.open_uploads() == [], point


def _kill_driver(places: dict[str, Place], log: Path) -> None:
    """Run a driver until each query has stopped at its point, then kill it, its JVM and its workers."""
    deaths = {
        place.destination: asdict(Death(str(place.home / "note"), point, alone=point == COMMIT_DIES))
        for point, place in places.items()
    }
    homes = json.dumps([str(place.home) for place in places.values()])
    with (
        log.open("w") as noise,
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.spark.stream_driver", homes],
            env={**os.environ, "PYTHONWARNINGS": "ignore", DEATHS: json.dumps(deaths)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=noise,
            text=True,
        ) as driver,
    ):
        assert driver.stdout is not None
        line = driver.stdout.readline().strip()
        victims = psutil.Process(driver.pid).children(recursive=True)
        driver.kill()
        for process in victims:
            with suppress(psutil.NoSuchProcess):  # a child of a process that is already dead
                process.kill()
        assert line == READY, log.read_text()[-2000:]
