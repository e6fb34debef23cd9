"""Tests of the way that a write takes, and of Spark's own writer into a directory."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql.functions import count, lit

from lockgate import read_manifest
from lockgate.storage_core.commit.job_summary import list_jobs
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.commit.task.attempt import Attempt
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.spark import pending_write
from lockgate.storage_core.spark.data_source import read
from lockgate.storage_core.spark.frame_write import Via, write
from lockgate.storage_core.spark.pending_write import JAR
from lockgate.storage_core.stores import UploadInfo

pytestmark = pytest.mark.integration

Listing = Callable[[], list[str]]
Uploads = Callable[[], list[UploadInfo]]


@pytest.fixture
def frame(spark: SparkSession) -> DataFrame:
    return spark.range(100, numPartitions=4).selectExpr("id", "id % 3 AS day", "cast(id AS string) AS text")


@pytest.mark.parametrize("partition_by", [[], ["day"]])
def test_both_ways_publish_the_same_rows_and_the_receipt_names_the_way(
    frame: DataFrame, spark: SparkSession, destination: str, open_uploads: Uploads, partition_by: list[str]
) -> None:
    ways: tuple[Via, ...] = ("spark", "direct")
    rows = []
    for way in ways:
        there = f"{destination}/{way}"
        receipt = write(frame, there, partition_by=partition_by, via=way)
        assert receipt is not None
        assert (receipt.via, receipt.rows) == (way, 100)
        rows.append(sorted(map(tuple, read(spark, there).select("id", "day", "text").collect())))
        assert None not in [file.rows for file in read_manifest(there).files.values()]
    assert rows[0] == rows[1]
    assert open_uploads() == []


def test_what_spark_wrote_becomes_the_published_file_without_a_copy(
    frame: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inodes: list[int] = []
    add_file = Attempt.add_file

    def noted(attempt: Attempt, local: Path, *rest: object, **more: object) -> object:
        inodes.append(local.stat().st_ino)
        return add_file(attempt, local, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Attempt, "add_file", noted)
    destination = tmp_path / "lake"
    write(frame, str(destination), partition_by=["day"])
    published = [file for file in destination.rglob("*.parquet") if "_lockgate" not in file.parts]
    assert sorted(file.stat().st_ino for file in published) == sorted(inodes)
    assert {file.stat().st_mode & 0o777 for file in published} == {0o666 & ~_umask()}
    assert not (destination / "_temporary").exists()


def test_a_staging_directory_is_used_and_is_empty_afterwards(
    frame: DataFrame, destination: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Path] = []
    add_file = Attempt.add_file

    def noted(attempt: Attempt, local: Path, *rest: object, **more: object) -> object:
        written.append(local)
        return add_file(attempt, local, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Attempt, "add_file", noted)
    receipt = write(frame, destination, staging=str(tmp_path / "staging"))
    assert receipt is not None
    assert (receipt.via, receipt.rows) == ("spark", 100)
    assert all(file.is_relative_to(tmp_path / "staging") for file in written)
    assert (len(written), list((tmp_path / "staging").iterdir())) == (4, [])


def test_the_metrics_that_a_user_observes_are_there_after_the_write(
    frame: DataFrame, destination: str
) -> None:
    observed = Observation("rows")
    write(frame.observe(observed, count(lit(1)).alias("count")), destination)
    assert observed.get == {"count": 100}


@pytest.mark.parametrize(
    ("given", "way"),
    [
        ({}, "spark"),
        ({"options": {"maxRecordsPerFile": 10}}, "spark"),
        ({"compression": "lz4"}, "spark"),
        ({"compression": "none"}, "spark"),
        ({"options": {"partBytes": 8 * 1024 * 1024}}, "spark"),
        ({"options": {"rowGroupRows": 10}}, "direct"),
        ({"sort_within_partitions": False}, "spark"),
        ({"sort_within_partitions": False, "partition_by": ["day"]}, "direct"),
    ],
)
def test_the_way_follows_from_what_the_options_need(
    frame: DataFrame, spark: SparkSession, destination: str, given: dict[str, object], way: str
) -> None:
    receipt = write(frame, destination, **given)  # type: ignore[arg-type]
    assert receipt is not None
    assert (receipt.via, receipt.rows) == (way, 100)
    if "options" in given and way == "spark" and "maxRecordsPerFile" in str(given):
        assert receipt.files == 12  # four Spark tasks of 25 rows, at most 10 in a file
    assert read(spark, destination).count() == 100


def test_a_spark_that_the_jar_does_not_fit_goes_direct_and_says_so_once(
    frame: DataFrame,
    destination: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The jar names a class that this Spark does not have."""
    unfit = tmp_path / "unfit.jar"
    with ZipFile(JAR) as ours, ZipFile(unfit, "w") as made:
        for name in ours.namelist():
            code = ours.read(name).replace(b"lockgate", b"unfitted").replace(b"/classic/", b"/another/")
            made.writestr(name.replace("lockgate", "unfitted"), code)
    monkeypatch.setattr(pending_write, "JAR", unfit)
    monkeypatch.setattr(pending_write, "PROTOCOL", "unfitted.PendingFiles")
    with caplog.at_level(logging.INFO, "lockgate.spark"):
        receipts = [write(frame, f"{destination}/{number}") for number in range(2)]
    assert [(one.via, one.rows) for one in receipts if one] == [("direct", 100)] * 2
    (said,) = [line for line in caplog.messages if "does not take 'spark'" in line]
    assert "does not fit (java.lang.NoClassDefFoundError: org/apache/spark/sql/another/" in said
    with pytest.raises(InvalidInputError, match="does not fit"):
        write(frame, destination, via="spark")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"via": "magic"}, "via 'magic' is not known; use one of auto, spark, direct"),
        ({"via": "direct", "staging": "/tmp/x"}, "does not go with staging, which is of Spark's own writer"),
        ({"via": "direct", "options": {"parquet.block.size": 1}}, "does not go with parquet.block.size"),
        ({"via": "spark", "options": {"rowGroupRows": 10}}, "does not go with the options rowGroupRows"),
    ],
)
def test_a_way_that_is_not_possible_is_refused_before_a_job_begins(
    frame: DataFrame, destination: str, given: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        write(frame, destination, **given)  # type: ignore[arg-type]
    assert list(list_jobs(destination)) == []


def test_a_write_that_spark_gives_up_leaves_no_job_data_and_no_upload(
    spark: SparkSession, destination: str, seen: Listing, open_uploads: Uploads
) -> None:
    broken = spark.range(4, numPartitions=4).selectExpr(
        "id", "if(id = 3, raise_error('broken'), 'fine') AS text"
    )
    with pytest.raises(PySparkException, match="broken"):
        write(broken, destination)
    assert (seen(), open_uploads()) == ([], [])
    assert [job.phase for job in list_jobs(destination)] == [JobPhase.FAILED]


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
