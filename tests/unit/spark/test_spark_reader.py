"""Which destinations Spark's own reader can read. No Java."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.types import (
    ByteType,
    DataType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    StructType,
)

from lockgate.storage_core.spark.reader.spark_reader import (
    _are_plain,
    _has_s3a,
    _is_one_layout,
    _without,
)


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
    outer = _without(StructType().add("a", inner, metadata=ids), frozenset({"parquet.field.id"}))
    assert outer["a"].metadata == {"comment": "c"}
    assert outer["a"].dataType.fields[0].metadata == {"comment": "c"}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("kind", "value", "is_plain"),
    [
        (StringType(), "a%20b", True),
        (StringType(), "", False),
        (IntegerType(), "300", True),
        (IntegerType(), "1.5", False),
        (DateType(), "2026-11-29", True),
        (ByteType(), "1", False),
        (DecimalType(5, 1), "1.5", False),
    ],
)
def test_spark_reads_only_partition_values_that_it_keeps(kind: DataType, value: str, is_plain: bool) -> None:
    schema = StructType().add("p", kind)
    assert _are_plain(schema, [f"p={value}/a.parquet", "p=__HIVE_DEFAULT_PARTITION__/a.parquet"]) is is_plain
