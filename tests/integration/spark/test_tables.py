"""What Spark writes is read as a table row for row as Spark itself reads the files."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from lockgate.spark import write
from tests.support.commit.destination import World
from tests.support.soak import IS_SOAK
from tests.support.table_engines import are_made
from tests.support.tables import ENGINES, READERS, in_order

pytestmark = pytest.mark.integration

COLUMNS = ("id", "small", "amount", "moment", "naive", "texts", "pair", "by name", "day", "place")


def rows(spark: SparkSession, first: int) -> DataFrame:
    return spark.sql(
        f"""
        SELECT id, CAST(id AS TINYINT) AS small, CAST(id AS DECIMAL(20, 3)) AS amount,
            TIMESTAMP '2026-01-01 00:00:00.123456 UTC' + make_interval(0, 0, 0, 0, 0, 0, id) AS moment,
            TIMESTAMP_NTZ '1969-12-31 23:59:59.999999' AS naive,
            array('a', NULL) AS texts, named_struct('x y', id, 'z', NULL, 'w', 1.5D) AS pair,
            map('k', id) AS `by name`, DATE '2026-01-01' + CAST(id AS INT) AS day,
            CASE WHEN id % 3 = 0 THEN NULL ELSE 'São: 100%' END AS place
        FROM range({first}, {first + 6})
        """.replace("'z', NULL", "'z', CAST(NULL AS STRING)")
    )


@pytest.mark.parametrize("via", ["spark", "direct"])
def test_tables_of_what_spark_wrote_are_what_spark_reads(
    spark: SparkSession, tmp_path: Path, via: str
) -> None:
    world = World(tmp_path, str(tmp_path / "dest"))
    options = {"partition_by": ["day", "place"], "via": via, "settings": world.settings}
    first = write(rows(spark, 0), world.url, tables=["delta", "iceberg"], **options)  # type: ignore[arg-type]
    second = write(rows(spark, 3), world.url, mode="overwrite", scope="partitions", **options)  # type: ignore[arg-type]
    assert [getattr(receipt, "tables_behind", "?") for receipt in (first, second)] == ["", ""]
    found = spark.read.parquet(world.url).select(*(f"`{name}`" for name in COLUMNS)).toArrow().to_pylist()
    expected = in_order([tuple(row.values()) for row in found])
    assert len(expected) == 9
    with_engines = IS_SOAK and are_made()
    for name, read in {**READERS, **(ENGINES if with_engines else {})}.items():
        assert in_order(read(world, COLUMNS)) == expected, name
