"""Partition folders are those of Spark's own writer, for every type and value that can be a folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from lockgate.storage_core.spark.data_source import read
from lockgate.storage_core.spark.frame_write import write
from lockgate.storage_core.spark.stage import stage
from tests.support.soak import soak_only
from tests.support.spark.settings import session_settings

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("by_each_writer")]

VALUES = {
    "small decimal(38,18)": "0.000000000000000001 0 -1.5 99999999999999999999.999999999999999999",
    "even decimal(4,0)": "0 -7 9999",
    "i int": "0 -2147483648 2147483647",
    "tiny tinyint": "-128 127",
    "b boolean": "true false",
    "day date": "0001-01-01 1582-10-04 1969-12-31 2026-11-23 9999-12-31",
    "t timestamp": "0001-01-02T03:04:05 1850-06-01T00:00:00.1 2026-03-29T02:30:00 2026-10-25T02:30:00.000001",
    "n timestamp_ntz": "0001-01-01T00:00:00 2026-11-23T01:02:03.040 9999-12-31T23:59:59.999999",
}
"""Values of each type, as Spark's literals; every row takes the next one, and the last column is text."""

TEXTS = [
    "a b",
    "",
    "a/b",
    "100%",
    "x=y:z",
    "\"#'*?\\{[]^}~&+,;@$",
    "São Paulo",
    "tab\tnew\nline\x7f",
    "%2F",
    ".",
    "-",
]


@pytest.fixture
def every_type(spark: SparkSession) -> DataFrame:
    """Return a row for each value, with a column for each type."""
    lists = {
        column: ", ".join(f"CAST('{value}' AS {column.split(' ', 1)[1]})" for value in values.split())
        for column, values in VALUES.items()
    }
    picks = [
        f"element_at(array({values}), CAST(id % {len(VALUES[column].split())} + 1 AS int)) "
        f"AS {column.split()[0]}"
        for column, values in lists.items()
    ]
    texts = spark.createDataFrame(
        [(number, text) for number, text in enumerate(TEXTS)], "id long, text string"
    )
    picked = texts.unionByName(spark.range(11, 14), allowMissingColumns=True).selectExpr("id", "text", *picks)
    return picked.coalesce(1)


def folders(root: str | Path) -> set[str]:
    return {file.parent.relative_to(root).as_posix() for file in Path(root).rglob("*.parquet")}


@pytest.mark.parametrize(("zone", "ansi"), [("Europe/Berlin", "true"), soak_only("+05:30", "false")])
def test_folders_of_every_type_are_those_of_sparks_own_writer(
    spark: SparkSession, every_type: DataFrame, tmp_path: Path, zone: str, ansi: str
) -> None:
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    names = [name for name in every_type.columns if name != "id"]
    with session_settings(spark, {"spark.sql.session.timeZone": zone, "spark.sql.ansi.enabled": ansi}):
        # One column at a time would be one job each; the names of a path have 255 bytes each.
        write(every_type, ours, partition_by=names)
        every_type.write.partitionBy(*names).parquet(theirs)

    assert sorted(folders(ours) ^ folders(theirs)) == []
    assert len(folders(ours)) == len(TEXTS) + 3


@pytest.mark.parametrize("given", ["DAY", soak_only("day")])
def test_a_partition_folder_has_the_case_that_the_user_gave(
    spark: SparkSession, destination: str, tmp_path: Path, given: str
) -> None:
    frame = spark.range(4).selectExpr("id", "id % 2 AS Day")
    frame.write.partitionBy(given).parquet(str(tmp_path / "theirs"))

    write(frame, destination, partition_by=[given])
    assert folders(destination) == folders(tmp_path / "theirs") == {f"{given}=0", f"{given}=1"}
    found = read(spark, destination)
    assert found.columns == spark.read.parquet(destination).columns == ["id", given]
    assert sorted(map(tuple, found.collect())) == [(n, n % 2) for n in range(4)]

    by_option = frame.write.format("lockgate").mode("append").option("partitionBy", given)
    by_option.save(f"{destination}-by-option")
    assert folders(f"{destination}-by-option") == folders(destination)
    stage(frame, tmp_path / "staged", partition_by=[given])
    assert folders(tmp_path / "staged") == folders(destination)
