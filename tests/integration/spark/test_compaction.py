"""Compaction in the tasks of a Spark session, of files that Spark wrote."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lockgate.spark import write
from lockgate.storage_core.commit.destination.manifest import read_manifest
from lockgate.storage_core.compaction.compact import compact

pytestmark = pytest.mark.integration

COLUMNS = (
    "id",
    "timestamp_micros(1700000000123456 + id) at",
    "named_struct('a', array(id)) nested",
    "id % 2 day",
)


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
def test_spark_merges_small_files_of_both_its_ways_and_reads_the_same_rows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKGATE_HOME", str(tmp_path / "home"))
    url = str(tmp_path / "dest")
    for number in range(4):
        frame = spark.range(5 * number, 5 * number + 5, 1, 2).selectExpr(*COLUMNS)
        write(frame, url, partition_by=["day"], via="spark" if number % 2 else "direct")
    read = spark.read.format("lockgate")
    before, schema = read.load(url).orderBy("id").collect(), read.load(url).schema
    done = compact(url, spark=spark)
    assert done.left == ()
    assert done.files_after == len(read_manifest(url).files) == 2
    assert read.load(url).orderBy("id").collect() == before
    assert read.load(url).schema == schema
    assert spark.read.parquet(url).select("id", "at", "nested", "day").orderBy("id").collect() == before
