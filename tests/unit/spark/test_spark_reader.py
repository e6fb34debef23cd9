"""Which destinations Spark's own reader reads, and which Lockgate's does. No Java."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructType

from lockgate import open_job, read_manifest
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.spark.reader.published_schema import published_schema
from lockgate.storage_core.spark.reader.spark_reader import (
    _has_s3a,
    _is_one_layout,
    _without_ids,
    spark_frame,
)
from lockgate.storage_core.stores import open_store


@pytest.mark.parametrize(
    ("keys", "is_read"),
    [
        (["a.parquet", "b.parquet"], True),
        (["x/a.parquet", "y/b.parquet"], True),
        (["day=1/a.parquet", "day=2/b.parquet"], True),
        (["a.parquet", "day=2/b.parquet"], False),
        (["day=1/n=1/a.parquet", "n=1/day=1/b.parquet"], False),
        (["x/day=1/a.parquet", "y/day=1/b.parquet"], False),
        (["a.parquet", "_b.parquet"], False),
        ([], False),
    ],
)
def test_spark_reads_files_in_whose_folders_it_finds_the_columns_of_the_log(
    keys: list[str], is_read: bool
) -> None:
    assert _is_one_layout(keys) is is_read


class Hadoop(dict[str, str]):
    """Hadoop's settings of a session."""

    def getClassByNameOrNull(self, _: str) -> object | None:  # noqa: N802 - Hadoop's
        return object() if "fs.s3a.impl" in self else None


@pytest.mark.parametrize(
    ("session", "reaches"),
    [
        ({}, False),
        ({"fs.s3a.impl": "there"}, False),
        ({"fs.s3a.impl": "there", "fs.s3a.endpoint": "http://another:9000"}, False),
        ({"fs.s3a.impl": "there", "fs.s3a.endpoint": "http://minio:9000/"}, True),
    ],
)
def test_spark_reaches_a_bucket_only_at_the_server_of_lockgates_settings(
    monkeypatch: pytest.MonkeyPatch, session: dict[str, str], reaches: bool
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://minio:9000")
    assert _has_s3a(Hadoop(session)) is reaches


def test_field_ids_are_left_out_at_every_depth_and_comments_are_kept() -> None:
    ids: dict[str, Any] = {"parquet.field.id": 7, "comment": "c"}
    inner = StructType().add("b", LongType(), metadata=ids)
    outer = _without_ids(StructType().add("a", inner, metadata=ids))
    assert outer["a"].metadata == {"comment": "c"}
    assert outer["a"].dataType.fields[0].metadata == {"comment": "c"}  # type: ignore[attr-defined]


def test_files_that_another_program_wrote_are_left_to_lockgates_reader(
    destination: str, settings: Settings, tmp_path: Path
) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table({"id": [1]}), tmp_path / "a.parquet")
    with open_job(destination, "plain-python", settings=settings) as job:
        with job.attempt("t") as attempt:
            attempt.add_file(tmp_path / "a.parquet", "a.parquet")
        job.commit()
    store, manifest = open_store(destination, settings), read_manifest(destination, settings=settings)
    ddl = published_schema(store, manifest)
    assert spark_frame(create_autospec(SparkSession), store, manifest, ddl) is None
