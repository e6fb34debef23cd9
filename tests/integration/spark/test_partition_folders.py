"""Partition folders are those of Spark's own writer, for every type and value that can be a folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lockgate.storage_core.spark.data_source import read
from lockgate.storage_core.spark.frame_write import write
from lockgate.storage_core.spark.stage import stage
from tests.support.soak import soak_only
from tests.support.spark.frames import TEXTS, every_type
from tests.support.spark.settings import session_settings

pytestmark = pytest.mark.integration


def folders(root: str | Path) -> set[str]:
    return {file.parent.relative_to(root).as_posix() for file in Path(root).rglob("*.parquet")}


@pytest.mark.parametrize(("zone", "ansi"), [("Europe/Berlin", "true"), soak_only("+05:30", "false")])
def test_folders_of_every_type_are_those_of_sparks_own_writer(
    spark: SparkSession, tmp_path: Path, zone: str, ansi: str
) -> None:
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    frame = every_type(spark)
    names = [name for name in frame.columns if name != "id"]
    with session_settings(spark, {"spark.sql.session.timeZone": zone, "spark.sql.ansi.enabled": ansi}):
        # One column at a time would be one job each; the names of a path have 255 bytes each.
        write(frame, ours, partition_by=names)
        frame.write.partitionBy(*names).parquet(theirs)

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
