"""Third-party readers can read committed data; the reader of the log sees only whole jobs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from lockgate import open_job
from lockgate.storage_core.commit.destination.kept_files import set_history_rule
from lockgate.storage_core.commit.records.log_records import HistoryRule
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.spark.data_source import read
from lockgate.storage_core.spark.frame_write import write
from lockgate.storage_core.stores import open_store

pytestmark = pytest.mark.integration

CITIES = ["plain", "a/b", "x y", "100%", "k=v", "São Paulo", "日本", "it's", "[c]", None]
"""What makes a partition folder hard to write and to read back."""


@pytest.fixture
def by_city(spark: SparkSession, destination: str) -> list[tuple[int, str | None]]:
    rows = [(number, CITIES[number % len(CITIES)]) for number in range(50)]
    write(spark.createDataFrame(rows, "id bigint, city string"), destination, partition_by=["city"])
    return sorted(rows)


def _rows(frame: DataFrame) -> list[str]:
    """Return rows as sorted text, so that equal rows compare equal; a NaN equals a NaN."""
    return sorted(repr(row) for row in frame.collect())


def _spark_parquet(spark: SparkSession, destination: str) -> list[tuple[int, str | None]]:
    return [tuple(row) for row in spark.read.parquet(destination).select("id", "city").collect()]


def _the_log(spark: SparkSession, destination: str) -> list[tuple[int, str | None]]:
    return [tuple(row) for row in read(spark, destination).select("id", "city").collect()]


def _duckdb(spark: SparkSession, destination: str) -> list[tuple[int, str | None]]:
    import duckdb

    source = f"read_parquet('{destination}/*/*.parquet', hive_partitioning=true)"
    return duckdb.connect().sql(f"SELECT id, city FROM {source}").fetchall()


def _polars(spark: SparkSession, destination: str) -> list[tuple[int, str | None]]:
    import polars as pl

    frame = pl.read_parquet(f"{destination}/**/*.parquet", hive_partitioning=True)
    return frame.select("id", "city").rows()


def _arrow(spark: SparkSession, destination: str) -> list[tuple[int, str | None]]:
    import pyarrow.dataset as ds

    table = ds.dataset(destination, partitioning=ds.HivePartitioning.discover()).to_table()
    return list(zip(table["id"].to_pylist(), table["city"].to_pylist(), strict=True))


@pytest.mark.parametrize("reader", [_spark_parquet, _the_log, _duckdb, _polars, _arrow])
def test_partitioned_rows_open_in(
    reader: Callable[[SparkSession, str], list[tuple[int, str | None]]],
    by_city: list[tuple[int, str | None]],
    spark: SparkSession,
    destination: str,
) -> None:
    found = sorted(reader(spark, destination))
    assert found == by_city


@pytest.fixture
def all_types(spark: SparkSession) -> DataFrame:
    return spark.sql(
        """
        SELECT * FROM VALUES
          (1L, 1Y, 2S, 3, 1.5F, double('NaN'), 12.34BD, true, 'é\\n', X'00ff', DATE'1969-12-31',
           TIMESTAMP'2026-03-29 01:30:00.123456', TIMESTAMP_NTZ'2026-03-29 01:30:00', array(1, null),
           map('a', array(1.5D)),
           named_struct('a b', 1, 'c', named_struct('d', array(named_struct('e', 'f'))))),
          (null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null)
        AS t(big, tiny, small, whole, single, number, price, flag, text, raw, day, moment, wall, list, map,
             nested)
        """
    )


def test_every_supported_type_is_read_back_unchanged(
    all_types: DataFrame, spark: SparkSession, destination: str
) -> None:
    write(all_types, destination)
    kinds = [(field.name, field.dataType.simpleString()) for field in all_types.schema.fields]
    for frame in (read(spark, destination), spark.read.parquet(destination)):
        assert [(field.name, field.dataType.simpleString()) for field in frame.schema.fields] == kinds
        assert _rows(frame) == _rows(all_types)


def test_partition_columns_are_read_back_with_their_types(spark: SparkSession, destination: str) -> None:
    frame = spark.sql(
        """
        SELECT * FROM VALUES
          (1, '007', 7S, DATE'2026-11-21', 1.50BD, true, TIMESTAMP'2026-11-21 10:00:00.5'),
          (2, null, null, null, null, null, null)
        AS t(id, code, small, day, price, flag, moment)
        """
    )
    folders = [name for name in frame.columns if name != "id"]
    write(frame, destination, partition_by=folders)
    assert _rows(read(spark, destination)) == _rows(frame)
    assert read(spark, destination).schema["code"].dataType.simpleString() == "string"


def test_timestamps_in_folders_are_in_the_sessions_time_zone(spark: SparkSession, destination: str) -> None:
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        frame = spark.sql("SELECT 1 AS id, TIMESTAMP'2026-11-21 10:00:00' AS moment")
        write(frame, destination, partition_by=["moment"])
        assert (Path(destination) / "moment=2026-11-21 10%3A00%3A00").is_dir()
        for found in (read(spark, destination), spark.read.parquet(destination)):
            assert _rows(found) == _rows(frame)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_the_reader_sees_whole_jobs_only(spark: SparkSession, destination: str) -> None:
    write(spark.range(10), destination)
    (Path(destination) / "part-foreign.parquet").write_bytes(b"half a file")
    with open_job(destination, "unfinished") as job:
        with job.attempt("t-0") as attempt, attempt.open("part-unfinished.parquet") as file:
            file.write(b"not visible")
        assert read(spark, destination).count() == 10
        job.abort()
    assert read(spark, destination).count() == 10


def test_an_earlier_turn_can_be_read(spark: SparkSession, destination: str) -> None:
    for start in (0, 10, 20):
        write(spark.range(start, start + 10), destination)
    assert read(spark, destination, as_of=2).count() == 20
    assert read(spark, destination, as_of=3).count() == 30


@pytest.mark.parametrize("by_spark", [False, True])
def test_an_earlier_turn_is_read_from_where_its_replaced_files_are_kept(
    spark: SparkSession, destination: str, by_spark: bool
) -> None:
    frame = spark.range(9).selectExpr("id", "cast(id % 3 as int) AS day")
    write(frame, destination, partition_by=["day"])
    set_history_rule(open_store(destination), HistoryRule(keep_s=0, keep_turns=9))
    write(
        frame.where("day = 1").limit(1), destination, mode="replace", scope="partitions", partition_by=["day"]
    )
    assert read(spark, destination, as_of=2, by_spark=by_spark).count() == 7
    assert _rows(read(spark, destination, as_of=1, by_spark=by_spark)) == _rows(frame)


def test_a_turn_beyond_the_log_is_refused(spark: SparkSession, destination: str) -> None:
    write(spark.range(10), destination)
    with pytest.raises(InvalidInputError, match=r"as_of=9: the log of .* has turns 0 to 1"):
        read(spark, destination, as_of=9).count()


def test_only_the_requested_columns_are_read(spark: SparkSession, destination: str) -> None:
    frame = spark.range(10).selectExpr("id", "id % 2 AS day", "repeat('x', 100) AS text")
    write(frame, destination, partition_by=["day"])
    narrow = read(spark, destination, columns=["day", "id"])
    assert narrow.columns == ["day", "id"]
    assert _rows(narrow) == _rows(frame.select("day", "id"))


def test_a_filter_on_one_query_does_not_narrow_the_next(spark: SparkSession, destination: str) -> None:
    write(spark.range(30).selectExpr("id", "id % 3 AS day"), destination, partition_by=["day"])
    frame = read(spark, destination)
    assert frame.where("day = 1").count() == 10
    assert frame.count() == 30


def test_files_are_combined_into_partitions_by_size(spark: SparkSession, destination: str) -> None:
    write(
        spark.range(60, numPartitions=1).selectExpr("id", "id % 6 AS day"), destination, partition_by=["day"]
    )
    plain = spark.read.format("lockgate").load(destination)
    split = spark.read.format("lockgate").option("splitBytes", "1").load(destination)
    assert (plain.rdd.getNumPartitions(), split.rdd.getNumPartitions()) == (1, 6)
    assert plain.count() == split.count() == 60


def test_files_of_a_job_without_a_schema_are_read_by_their_footer_and_folders(
    spark: SparkSession, destination: str, tmp_path: Path
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"id": pa.array([1, 2]), "price": pa.array([Decimal("1.50"), None])})
    pq.write_table(table, tmp_path / "a.parquet")
    with open_job(destination, "plain-python") as job:
        with job.attempt("t-0") as attempt:
            attempt.add_file(tmp_path / "a.parquet", "day=2026-11-21/n=3/a.parquet")
            attempt.add_file(tmp_path / "a.parquet", "day=__HIVE_DEFAULT_PARTITION__/n=3000000000/a.parquet")
        job.commit()
    frame = read(spark, destination)
    assert frame.schema.simpleString() == "struct<id:bigint,price:decimal(3,2),day:date,n:bigint>"
    assert frame.where("day IS NULL").count() == 2
    (row,) = frame.where("n = 3 AND id = 1").collect()
    assert (row.price, row.day) == (Decimal("1.50"), dt.date(2026, 11, 21))


def test_reading_a_destination_without_a_published_job_raises(spark: SparkSession, destination: str) -> None:
    Path(destination).mkdir(parents=True)
    with pytest.raises(InvalidInputError, match="no job has published anything there"):
        read(spark, destination)


def test_files_other_than_parquet_are_refused_by_name(spark: SparkSession, destination: str) -> None:
    with open_job(destination, "csv") as job:
        with job.attempt("t-0") as attempt, attempt.open("a.csv") as file:
            file.write(b"id\n1\n")
        job.commit()
    with pytest.raises(InvalidInputError, match=r"a-\w+\.csv is not Parquet"):
        read(spark, destination)
