"""Options of `format("lockgate")`: checked once, with an error that names the option and the known ones."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.parquet.parquet_file import FileOptions
from lockgate.storage_core.spark.source_options import read_options, write_options


def test_a_plain_append_has_the_defaults() -> None:
    options = write_options({"path": "/data/sales"}, overwrite=False)
    assert (options.path, options.mode, options.partition_by) == ("/data/sales", "append", ())
    assert (options.commit_by, options.job_name, options.part_bytes) == ("job", None, None)
    assert options.files == FileOptions()
    assert options.files.max_open_files == 64


def test_option_names_that_spark_has_lower_cased_are_known() -> None:
    options = write_options(
        {
            "path": "s3://lake/sales",
            "partitionby": "day, city",
            "rowgrouprows": "1000",
            "rowgroupbytes": "2048",
            "maxopenfiles": "3",
            "maxrecordsperfile": "10",
            "compression": "ZSTD",
            "partbytes": str(5 * 1024 * 1024),
            "jobname": "nightly",
            "commit": "task",
            "evolveschema": "True",
            "tables": "delta, iceberg",
        },
        overwrite=True,
    )
    assert options.partition_by == ("day", "city")
    assert options.mode == "replace"
    assert options.files == FileOptions(
        compression="zstd",
        row_group_rows=1000,
        row_group_bytes=2048,
        max_open_files=3,
        max_records_per_file=10,
    )
    assert (options.commit_by, options.job_name, options.evolve_schema) == ("task", "nightly", True)
    assert (options.part_bytes, options.tables) == (5 * 1024 * 1024, ("delta", "iceberg"))


def test_a_list_of_partition_columns_can_contain_names_with_commas() -> None:
    options = write_options({"path": "/d", "partitionby": '["a,b", "c"]'}, overwrite=False)
    assert options.partition_by == ("a,b", "c")


@pytest.mark.parametrize("overwrite", [True, False])
def test_an_explicit_mode_wins_over_sparks(overwrite: bool) -> None:
    assert write_options({"path": "/d", "mode": "fail"}, overwrite=overwrite).mode == "fail"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "no destination"),
        ({"path": " "}, "no destination"),
        ({"path": "/d", "partitonby": "day"}, r"unknown option 'partitonby'; known are .*partitionBy"),
        ({"path": "/d", "mode": "upsert"}, r"mode='upsert'.*append, replace, fail"),
        ({"path": "/d", "compression": "lzo"}, r"compression='lzo'.*snappy"),
        ({"path": "/d", "rowgrouprows": "0"}, r"rowGroupRows='0'.*at least 1"),
        ({"path": "/d", "maxopenfiles": "many"}, r"maxOpenFiles='many'"),
        ({"path": "/d", "partbytes": "1024"}, r"partBytes='1024'.*at least 5242880"),
        ({"path": "/d", "partitionby": "a,,b"}, "empty column name"),
        ({"path": "/d", "partitionby": '["a", 1]'}, "not a list of names"),
        ({"path": "/d", "jobid": "x-g1"}, "jobId and jobAttempt go together"),
        ({"path": "/d", "jobid": "x-g1", "jobattempt": "1", "jobname": "x"}, "not by both"),
        ({"path": "/d", "commit": "task"}, "name it, with jobName"),
        ({"path": "/d", "commit": "never"}, r"commit='never'.*job, task"),
    ],
)
def test_an_invalid_option_is_refused_by_name(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        write_options(options, overwrite=False)


def test_an_unknown_option_is_named_without_its_value() -> None:
    with pytest.raises(InvalidInputError) as refused:
        write_options({"path": "/d", "secretkey": "hunter2"}, overwrite=False)
    assert "secretkey" in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_reading_takes_a_turn_and_a_time_zone() -> None:
    options = read_options({"path": "/d", "asof": "3", "timezone": "Asia/Tokyo"})
    assert (options.as_of, options.time_zone) == (3, "Asia/Tokyo")
    assert read_options({"path": "/d"}).as_of is None


@pytest.mark.parametrize(
    ("option", "text", "means"),
    [
        ("asOf", "v1", "v1"),
        ("tag", "v1", "v1"),
        ("turn", "7", 7),
        ("timestampAsOf", "2026-11-29 12:00", datetime(2026, 11, 29, 3, tzinfo=UTC)),
        ("timestampAsOf", "2026-11-29T12:00Z", datetime(2026, 11, 29, 12, tzinfo=UTC)),
    ],
)
def test_a_turn_is_read_by_number_time_or_tag(option: str, text: str, means: object) -> None:
    assert read_options({"path": "/d", option: text, "timezone": "Asia/Tokyo"}).as_of == means


@pytest.mark.parametrize(
    "options",
    [
        {"asof": "-1"},
        {"turn": "v1"},
        {"timestampasof": "3"},
        {"tag": "2026-11"},
        {"turn": "1", "tag": "v1"},
    ],
)
def test_another_kind_of_turn_or_two_of_them_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError, match="option"):
        read_options({"path": "/d", **options})
