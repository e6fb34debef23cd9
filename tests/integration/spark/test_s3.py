"""Tests of Spark writes to a real S3 server, without renames, read back by third-party readers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lockgate import attach_job, read_manifest, recover_job
from lockgate.storage_core.clock import SystemClock
from lockgate.storage_core.commit.destination.visible_files import visible_files
from lockgate.storage_core.commit.job_summary import list_jobs
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.stores import UploadInfo, open_store
from tests.support.s3 import real_server
from tests.support.soak import soak_only
from tests.support.spark.driver import DAYS, DriverDiedError, How, count_days, spark_driver, write_days

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.requires("s3-server")]

Listing = Callable[[], list[str]]
Uploads = Callable[[], list[UploadInfo]]

ROWS = 1000
BY_DAY = [[day, ROWS // DAYS] for day in range(DAYS)]


class DaysLater(SystemClock):
    """A clock three days ahead, when every lease and every suspension has expired."""

    slept_s = 0.0

    def now_s(self) -> float:
        return super().now_s() + 3 * 86_400 + self.slept_s

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.slept_s

    def sleep(self, seconds: float) -> None:
        self.slept_s += seconds


@pytest.fixture(scope="module")
def s3_environment() -> dict[str, str]:
    return real_server.environment()


@pytest.fixture
def destination(s3_environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield a new prefix; delete its objects afterwards."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name, value in s3_environment.items():
        monkeypatch.setenv(name, value)
    url = f"{real_server.new_url()}/sales"
    yield url
    store = open_store(url)
    for page in store.pages():
        store.delete_many([info.key for info in page])


@pytest.mark.parametrize("how", ["write", "save"])
def test_all_partitioned_rows_are_visible_after_the_commit(
    how: How, spark: SparkSession, destination: str, seen: Listing, open_uploads: Uploads
) -> None:
    write_days(spark, destination=destination, how=how, rows=ROWS)

    assert count_days(spark, destination=destination) == BY_DAY
    assert open_uploads() == []
    assert seen() == sorted(read_manifest(destination).files) == _of_success(destination)
    assert len(seen()) == 2 * DAYS
    if how == "write":  # `test_s3a` has a session that reaches S3
        with pytest.raises(InvalidInputError, match="no S3A for the endpoint of Lockgate's settings"):
            count_days(spark, destination=destination, by_spark=True)


def test_rows_are_invisible_until_the_decision(
    spark: SparkSession, destination: str, seen: Listing, open_uploads: Uploads
) -> None:
    write_days(spark, destination=destination, how="save", rows=ROWS, options={"commit": "task"})
    assert seen() == []
    assert read_manifest(destination).files == {}
    assert len(open_uploads()) == 2 * DAYS

    receipt = attach_job(destination, "nightly-g1").commit()

    assert receipt.rows == ROWS
    assert open_uploads() == []
    assert seen() == sorted(read_manifest(destination).files) == _of_success(destination)
    assert count_days(spark, destination=destination) == BY_DAY


@pytest.mark.soak
def test_files_of_several_parts_are_complete(
    spark: SparkSession, destination: str, open_uploads: Uploads, tmp_path: Path
) -> None:
    rows, part_bytes = 40_000, 5 * 2**20
    frame = spark.range(rows, numPartitions=2).selectExpr(
        "id", f"id % {DAYS} AS day", "repeat(format_string('%020d', id), 100) AS text"
    )
    options = {"compression": "none", "partBytes": str(part_bytes), "partitionBy": "day"}
    frame.write.format("lockgate").mode("append").options(**options).save(destination)

    assert min(info.size for info in visible_files(open_store(destination))) > part_bytes
    assert open_uploads() == []
    assert _polars_over_s3(destination, tmp_path) == [[day, rows // DAYS] for day in range(DAYS)]


@pytest.mark.fault
@pytest.mark.parametrize(
    ("failpoint", "decided"),
    [soak_only("decide.create.before=kill", False), ("complete.complete.after=kill@4", True)],
)
@pytest.mark.soak
def test_recovery_finishes_the_job_of_a_driver_killed_around_its_decision(
    *,
    failpoint: str,
    decided: bool,
    s3_environment: Mapping[str, str],
    spark: SparkSession,
    destination: str,
    seen: Listing,
    open_uploads: Uploads,
    tmp_path: Path,
) -> None:
    environment = {**s3_environment, "LOCKGATE_FAILPOINTS": failpoint}
    with spark_driver(tmp_path / "driver.log", environment=environment) as driver:
        with pytest.raises(DriverDiedError) as death:
            driver.ask("write", destination=destination, how="write", rows=ROWS)
        assert death.value.returncode == -9
    assert read_manifest(destination).files == {}
    if not decided:
        assert seen() == []
        assert len(open_uploads()) == 2 * DAYS

    assert recover_job(destination, "nightly-g1", clock=DaysLater()).ended

    (job,) = list_jobs(destination)
    assert job.phase is (JobPhase.COMMITTED if decided else JobPhase.FAILED)
    assert open_uploads() == []
    write_days(spark, destination=destination, how="write", rows=ROWS)  # a retry or a recomputation
    assert count_days(spark, destination=destination) == BY_DAY
    assert seen() == sorted(read_manifest(destination).files)


@pytest.mark.soak
def test_other_readers_open_files_written_by_spark(
    spark: SparkSession, destination: str, tmp_path: Path
) -> None:
    write_days(spark, destination=destination, how="write", rows=ROWS)
    for reader in (_arrow_over_s3, _polars_over_s3, _duckdb_over_a_copy):
        assert reader(destination, tmp_path) == BY_DAY, reader.__name__


def _arrow_over_s3(destination: str, scratch: Path) -> list[list[int]]:
    import pyarrow.dataset as ds
    from pyarrow.fs import S3FileSystem

    server = S3FileSystem(
        access_key=os.environ["AWS_ACCESS_KEY_ID"],
        secret_key=os.environ["AWS_SECRET_ACCESS_KEY"],
        endpoint_override=os.environ["AWS_ENDPOINT_URL"],
        region=os.environ["AWS_REGION"],
    )
    source = ds.dataset(destination.removeprefix("s3://"), filesystem=server, partitioning="hive")
    days = source.to_table(columns=["day"]).group_by("day").aggregate([([], "count_all")]).sort_by("day")
    return [list(row.values()) for row in days.select(["day", "count_all"]).to_pylist()]


def _polars_over_s3(destination: str, scratch: Path) -> list[list[int]]:
    import polars as pl

    server = {
        "aws_endpoint_url": os.environ["AWS_ENDPOINT_URL"],
        "aws_allow_http": "true",
        "aws_access_key_id": os.environ["AWS_ACCESS_KEY_ID"],
        "aws_secret_access_key": os.environ["AWS_SECRET_ACCESS_KEY"],
        "aws_region": os.environ["AWS_REGION"],
    }
    frame = pl.scan_parquet(f"{destination}/day=*/*.parquet", storage_options=server, hive_partitioning=True)
    return [list(row) for row in frame.group_by("day").len().sort("day").collect().rows()]


def _duckdb_over_a_copy(destination: str, scratch: Path) -> list[list[int]]:
    import duckdb

    store = open_store(destination)
    for info in visible_files(store):
        copy = scratch / info.key
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes(store.get(info.key))
    source = f"read_parquet('{scratch}/day=*/*.parquet', hive_partitioning=true)"
    found = duckdb.connect().sql(f"SELECT day, count(*) FROM {source} GROUP BY day ORDER BY day")
    return [list(row) for row in found.fetchall()]


def _of_success(destination: str) -> list[str]:
    summary = json.loads(open_store(destination).get("_SUCCESS"))
    return sorted(summary["filenames"])
