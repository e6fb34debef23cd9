"""What Spark writes with any of its Parquet options, Spark's own reader reads by `read`, too."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.spark.data_source import read
from lockgate.storage_core.spark.frame_write import write
from tests.support.spark.frames import PARQUET_SETTINGS, of_all_ages, texts
from tests.support.spark.settings import session_settings

pytestmark = pytest.mark.integration


@pytest.fixture
def frame(spark: SparkSession) -> DataFrame:
    return of_all_ages(spark)


@pytest.mark.parametrize("chosen", PARQUET_SETTINGS)
def test_rows_comments_and_metadata_are_those_that_spark_reads(
    spark: SparkSession, frame: DataFrame, destination: str, chosen: str
) -> None:
    with session_settings(spark, PARQUET_SETTINGS[chosen]):
        write(frame, destination)
    found, listed = read(spark, destination, by_spark=True), spark.read.parquet(destination)
    assert texts(found) == texts(frame)
    assert found.schema == listed.schema
    if chosen != "no field ids":  # Spark refuses its own files then, by the ids in the schema that it infers
        assert texts(listed) == texts(frame)
    assert found.schema["day"].metadata["comment"] == "the day"


def test_lockgates_reader_reads_int96_and_refuses_the_julian_calendar(
    spark: SparkSession, frame: DataFrame, destination: str
) -> None:
    with session_settings(spark, PARQUET_SETTINGS["int96"]):
        write(frame, destination)
    assert texts(spark.read.format("lockgate").load(destination)) == texts(frame)
    with session_settings(spark, PARQUET_SETTINGS["julian microseconds"]):
        write(frame, destination, mode="replace")
    with pytest.raises(PySparkException, match=r"column 'moment' has a value before 1900.* by_spark=True"):
        spark.read.format("lockgate").load(destination).collect()


def test_a_partition_column_with_a_collation_is_refused_as_spark_does(
    spark: SparkSession, destination: str
) -> None:
    for collation in ("UNICODE_CI", "UTF8_LCASE", "UNICODE"):
        cities = spark.range(3).selectExpr("id", f"collate(string(id), '{collation}') AS city")
        with pytest.raises(PySparkException, match="INVALID_PARTITION_COLUMN_DATA_TYPE"):
            cities.write.partitionBy("city").parquet(f"{destination}-by-spark-{collation}")
        for via in ("spark", "direct"):
            with pytest.raises(InvalidInputError, match=f"has the collation {collation}"):
                write(cities, destination, partition_by=["city"], via=via)  # type: ignore[arg-type]


def test_columns_and_filters_are_pushed_down_to_the_files(spark: SparkSession, destination: str) -> None:
    rows = spark.range(30).selectExpr("id", "id % 3 AS day", "string(id) AS text")
    write(rows, destination, partition_by=["day"])
    found = read(spark, destination, columns=["id", "day"], by_spark=True)
    plan = found.where("day = 1 AND id > 5")._jdf.queryExecution()
    assert "PartitionFilters: [isnotnull(day" in plan.toString()
    assert "PushedFilters: [IsNotNull(id), GreaterThan(id,5)]" in plan.toString()
    assert "ReadSchema: struct<id:bigint>" in plan.toString()


def test_partition_values_that_spark_would_change_are_refused(spark: SparkSession, destination: str) -> None:
    write(spark.sql("SELECT 1 AS id, 1.5BD AS price"), destination, partition_by=["price"])
    with pytest.raises(InvalidInputError, match="other partition values"):
        read(spark, destination, by_spark=True)
    assert [str(row.price) for row in read(spark, destination).collect()] == ["1.5"]


def test_the_defaults_of_another_table_fill_no_rows(spark: SparkSession, destination: str) -> None:
    spark.sql("CREATE TABLE with_default (id BIGINT, z INT DEFAULT 42) USING parquet")
    try:
        spark.sql("INSERT INTO with_default VALUES (2, 7)")
        write(spark.range(1, 2), destination)
        write(spark.table("with_default"), destination, evolve_schema=True)
        rows = read(spark, destination, by_spark=True).orderBy("id").collect()
        assert [(row.id, row.z) for row in rows] == [(1, None), (2, 7)]
    finally:
        spark.sql("DROP TABLE with_default")
