"""Spark reads `s3://` and `s3a://` sources with the credentials of a connection, on each kind of Spark."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from pyarrow import parquet

from lockgate.operators.spark_process.process import SparkChild, SparkWork
from lockgate.storage_core.settings import Settings, load_settings
from lockgate.storage_core.spark.s3a import s3a_config, s3a_jars
from lockgate.storage_core.stores import open_store
from lockgate.storage_core.stores.s3.credentials import FixedCredentials
from tests.support.s3.real_server import environment, new_url
from tests.support.soak import soak_only
from tests.support.spark.cluster import CLUSTER_CONFIG, standalone_cluster
from tests.support.spark.connect_server import connect_server
from tests.support.spark.driver import DAYS, spark_driver

JARS = Path(__file__).parents[3] / ".tools" / "ivy" / "jars"

pytestmark = [pytest.mark.soak, pytest.mark.integration]
with_jars = pytest.mark.skipif(
    not JARS.exists(), reason="no hadoop-aws: `make s3a-jars` fetches 690 MB, once"
)


class Lines(list[str]):
    """Record the lines of a task's log."""

    def info(self, message: str, *arguments: object) -> None:
        """Record a line."""
        self.append(message % arguments)


def connected(**changes: Any) -> Settings:
    """Return the settings of a task with a connection to the S3 server."""
    server = environment()
    credentials = FixedCredentials(server["AWS_ACCESS_KEY_ID"], server["AWS_SECRET_ACCESS_KEY"], None)
    return load_settings(
        s3_endpoint_url=server["AWS_ENDPOINT_URL"], s3_region="us-east-1", **changes
    ).with_s3_credentials(credentials)


def put_source(settings: Settings) -> str:
    url = new_url()
    buffer = pa.BufferOutputStream()
    parquet.write_table(pa.table({"id": range(100)}), buffer)
    open_store(url, settings).put("part-0.parquet", buffer.getvalue().to_pybytes())
    return url


def stage_work(source: str, staging: Path, **options: Any) -> SparkWork:
    return SparkWork(
        run="lockgate.operators.spark_process.frames:write_frame",
        arguments={
            "python_callable": "lockgate.operators.spark_process.frames:read_files",
            "op_kwargs": {"source": source, "source_format": "parquet", "where": "id >= 90"},
            "staging": str(staging),
            "format": "parquet",
            "partition_by": [],
            "options": {},
        },
        **options,
    )


def staged_ids(staging: Path) -> list[int]:
    return sorted(parquet.read_table(staging).column("id").to_pylist())


@contextmanager
def no_credentials() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield


def command_lines() -> str:
    lines = []
    for process in psutil.Process().children(recursive=True):
        try:
            lines.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return "\n".join(lines)


class Watching(Lines):
    """A log that looks at the command lines of all child processes at each line."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = ""

    def info(self, message: str, *arguments: object) -> None:
        """Record a line, and the processes."""
        super().info(message, *arguments)
        self.seen += command_lines()


@pytest.mark.requires("s3-server")
@with_jars
@pytest.mark.parametrize("cluster", [False, soak_only(True)])
def test_a_source_in_s3_is_read_with_the_credentials_of_a_connection(tmp_path: Path, cluster: bool) -> None:
    log = Watching()
    with ExitStack() as stack:
        stack.enter_context(no_credentials())
        options: dict[str, Any] = {"master": "local[1]"}
        if cluster:
            options = {"master": stack.enter_context(standalone_cluster(tmp_path)), "config": CLUSTER_CONFIG}
        settings = connected(spark_s3_jars=JARS)
        source = put_source(settings)

        SparkChild(log).run(
            stage_work(source, tmp_path / "staged", settings=settings, reads_s3=True, **options)
        )

    secret = environment()["AWS_SECRET_ACCESS_KEY"]
    assert staged_ids(tmp_path / "staged") == list(range(90, 100))
    assert "hadoop-aws" in log.seen
    assert secret not in log.seen
    assert secret not in "\n".join(log)


@pytest.mark.requires("s3-server")
@with_jars
def test_sparks_own_reader_reads_the_live_files_of_a_destination_in_s3(tmp_path: Path) -> None:
    settings, destination = connected(spark_s3_jars=JARS), new_url()
    s3a = {f"spark.hadoop.{name}": value for name, value in s3a_config(settings).items()}
    with spark_driver(
        tmp_path / "log", config={**s3a_jars(settings), **s3a}, environment=environment()
    ) as driver:
        driver.ask("write", destination=destination, how="write", rows=100)
        open_store(destination, settings).put("day=0/not-live.parquet", b"not Parquet")
        found = driver.ask("days", destination=destination, by_spark=True)
    assert found == [[day, 100 // DAYS] for day in range(DAYS)]


def test_a_spark_connect_server_stages_files_on_a_shared_disk(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"id": range(100)}), tmp_path / "source.parquet")

    with connect_server(tmp_path / "connect.log") as remote:
        files = SparkChild(Lines()).run(
            stage_work(str(tmp_path / "source.parquet"), tmp_path / "staged", remote=remote)
        )

    assert len(files) == 1
    assert staged_ids(tmp_path / "staged") == list(range(90, 100))
