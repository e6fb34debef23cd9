"""Tests of staging: Spark writes to a new directory whose frozen listing is the job's task list."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from lockgate import open_job
from lockgate.storage_core.commit.staged_files import group_into_tasks
from lockgate.storage_core.errors import ConflictError, InvalidInputError
from lockgate.storage_core.spark.data_source import read
from lockgate.storage_core.spark.stage import StageFormat, stage

pytestmark = pytest.mark.integration


@pytest.fixture
def frame(spark: SparkSession) -> DataFrame:
    return spark.range(40).selectExpr("id", "id % 4 AS day", "CASE WHEN id % 2 = 0 THEN 'a/b' END AS city")


@pytest.mark.parametrize("kind", ["parquet", "orc", "json", "csv"])
def test_a_stage_lists_every_file_that_spark_finished(
    frame: DataFrame, spark: SparkSession, tmp_path: Path, kind: StageFormat
) -> None:
    files = stage(frame, tmp_path / "stage", format=kind, partition_by=["day", "city"])
    assert {file.path.rpartition("/")[0] for file in files} == {
        f"day={day}/city={'a%2Fb' if day % 2 == 0 else '__HIVE_DEFAULT_PARTITION__'}" for day in range(4)
    }
    assert all((tmp_path / "stage" / file.path).stat().st_size == file.size > 0 for file in files)
    assert [file.path for file in files] == sorted(file.path for file in files)
    reread = getattr(spark.read.schema(frame.schema), kind)(str(tmp_path / "stage"))
    assert reread.count() == 40
    assert (tmp_path / "stage").stat().st_mode & 0o777 == 0o700
    assert {(tmp_path / "stage" / file.path).stat().st_mode & 0o777 for file in files} == {0o600}


def test_options_are_passed_to_sparks_writer(frame: DataFrame, tmp_path: Path) -> None:
    files = stage(frame, tmp_path / "stage", format="csv", options={"header": True, "compression": "gzip"})
    assert all(file.path.endswith(".csv.gz") for file in files)


def test_the_success_marker_of_a_stage_is_written_even_if_the_session_disables_it(
    frame: DataFrame, spark: SparkSession, tmp_path: Path
) -> None:
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    configuration.set("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
    try:
        assert len(stage(frame, tmp_path / "stage")) > 0
    finally:
        configuration.unset("mapreduce.fileoutputcommitter.marksuccessfuljobs")


def test_an_existing_stage_is_refused_and_left_unchanged(frame: DataFrame, tmp_path: Path) -> None:
    (tmp_path / "stage").mkdir()
    with pytest.raises(ConflictError, match="needs a new one"):
        stage(frame, tmp_path / "stage")
    assert list((tmp_path / "stage").iterdir()) == []


def test_a_stage_of_a_failed_spark_job_has_no_success_marker(spark: SparkSession, tmp_path: Path) -> None:
    broken = spark.range(4).selectExpr("id", "if(id = 3, raise_error('broken'), 'fine') AS text")
    with pytest.raises(PySparkException, match="broken"):
        stage(broken, tmp_path / "stage")
    assert not (tmp_path / "stage" / "_SUCCESS").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "avro"}, "format 'avro' is not known; use one of parquet, orc, json, csv"),
        ({"partition_by": ["month"]}, "'month' does not exist"),
        ({"partition_by": ["id", "day", "city"]}, "no column is left"),
    ],
)
def test_invalid_options_are_refused_before_anything_is_created(
    frame: DataFrame, tmp_path: Path, options: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        stage(frame, tmp_path / "stage", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "stage").exists()


def test_staged_tasks_become_a_job(
    frame: DataFrame,
    spark: SparkSession,
    tmp_path: Path,
    destination: str,
    seen: Callable[[], list[str]],
) -> None:
    files = stage(frame, tmp_path / "stage", partition_by=["day"])
    tasks = group_into_tasks(files, max_files=3)
    with open_job(destination, "staged", committer="staging") as job:
        job.expect(tasks, staging=str(tmp_path / "stage"))
        for task in tasks:
            with job.attempt(task.task_id) as attempt:
                for file in task.files:
                    attempt.add_file(tmp_path / "stage" / file.path, file.path, expected_size=file.size)
        assert seen() == []
        job.commit()
    assert len(seen()) == len(files)
    assert spark.read.parquet(destination).count() == 40
    assert read(spark, destination).where("day = 3").count() == 10
