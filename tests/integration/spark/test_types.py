"""Tests of unusual rows in Spark: many columns, deep nesting, decimals, time zones, a raising function."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lockgate import read_manifest
from lockgate.storage_core.commit.job_summary import list_jobs
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.spark.data_source import read
from lockgate.storage_core.spark.frame_write import write
from lockgate.storage_core.stores import UploadInfo
from tests.support.soak import rounds
from tests.support.spark.frames import nested

pytestmark = pytest.mark.integration

Listing = Callable[[], list[str]]
Uploads = Callable[[], list[UploadInfo]]


def test_a_frame_of_many_columns_is_written_completely(spark: SparkSession, destination: str) -> None:
    columns = rounds(300, 1_000)
    wide = spark.range(3).selectExpr(*(f"id + {number} AS c{number:04d}" for number in range(columns)))
    receipt = write(wide, destination)
    assert receipt is not None
    assert receipt.rows == 3
    found = read(spark, destination)
    assert found.columns == [f"c{number:04d}" for number in range(columns)]
    last = sorted(row[0] for row in found.select(found.columns[-1]).collect())
    assert last == [columns - 1, columns, columns + 1]
    assert spark.read.parquet(destination).columns == found.columns


def test_a_value_nested_ten_levels_deep_is_written_completely(spark: SparkSession, destination: str) -> None:
    deep = nested(spark)
    write(deep, destination)
    for found in (read(spark, destination), spark.read.parquet(destination)):
        assert found.schema["deep"].dataType.simpleString() == deep.schema["deep"].dataType.simpleString()
        assert sorted(map(repr, found.collect())) == sorted(map(repr, deep.collect()))


def test_decimals_of_every_size_are_exact(spark: SparkSession, destination: str) -> None:
    values = [Decimal("-99999999999999999999999999999999999.999"), Decimal("0.001"), None]
    frame = spark.createDataFrame(
        [(number, value) for number, value in enumerate(values)], "id int, exact decimal(38,3)"
    ).selectExpr("id", "exact", "cast(id AS decimal(4,2)) AS small")
    write(frame, destination, partition_by=["small"])
    found = {row.id: (row.exact, row.small) for row in read(spark, destination).collect()}
    assert found == {number: (value, Decimal(number)) for number, value in enumerate(values)}


def test_a_timestamp_is_the_same_instant_in_every_time_zone(spark: SparkSession, destination: str) -> None:
    moment = dt.datetime(2026, 3, 29, 1, 30, tzinfo=dt.UTC)
    zone = spark.conf.get("spark.sql.session.timeZone")
    frame = spark.createDataFrame(
        [(1, moment, moment.replace(tzinfo=None, hour=2))], "id int, moment timestamp, wall timestamp_ntz"
    )
    try:
        spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
        write(frame, destination)
        for there in ("UTC", "Asia/Kolkata", "America/St_Johns"):
            spark.conf.set("spark.sql.session.timeZone", there)
            (row,) = (
                read(spark, destination)
                .selectExpr("unix_micros(moment) AS us", "string(wall) AS wall")
                .collect()
            )
            assert row.us == int(moment.timestamp()) * 1_000_000
            assert row.wall == "2026-03-29 02:30:00"
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))


def test_a_function_that_raises_for_one_row_leaves_nothing_of_any_task(
    spark: SparkSession, destination: str, seen: Listing, open_uploads: Uploads
) -> None:
    from pyspark.sql.functions import udf

    @udf("long", useArrow=False)
    def picky(number: int) -> int:
        if number == 777:
            raise ValueError("I do not like 777")
        return number

    frame = spark.range(1000, numPartitions=4).select(picky("id").alias("id"))
    with pytest.raises(PySparkException, match="I do not like 777"):
        write(frame, destination)
    assert (seen(), open_uploads()) == ([], [])
    (job,) = list_jobs(destination)
    assert job.phase is JobPhase.FAILED
    assert read_manifest(destination).files == {}
    write(spark.range(3), destination)
    assert read(spark, destination).count() == 3


def test_null_and_strange_partition_values_replace_only_themselves(
    spark: SparkSession, destination: str
) -> None:
    rows = [(number, city) for number, city in enumerate(["a/b", None, "a", "b", "a%2Fb"])]
    write(spark.createDataFrame(rows, "id int, city string"), destination, partition_by=["city"])
    new = spark.createDataFrame([(10, "a/b"), (11, None)], "id int, city string")
    write(new, destination, mode="replace", scope="partitions", partition_by=["city"])
    found = {(row.id, row.city) for row in read(spark, destination).collect()}
    assert found == {(10, "a/b"), (11, None), (2, "a"), (3, "b"), (4, "a%2Fb")}
    assert {
        (row.id, row.city) for row in spark.read.parquet(destination).select("id", "city").collect()
    } == found
    assert sorted(read_manifest(destination).files) == sorted(
        str(path.relative_to(destination)) for path in Path(destination).glob("city=*/*.parquet")
    )
