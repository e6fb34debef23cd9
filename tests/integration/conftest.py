"""Fixtures of the integration tests: a Spark session, and the visible state of a destination."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lockgate.storage_core.commit.destination.visible_files import visible_files
from lockgate.storage_core.stores import UploadInfo, open_store
from tests.support.s3 import real_server
from tests.support.spark.python_daemon import DAEMON

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Yield a session with two threads and three attempts per task, whose processes reach the S3 server."""
    from lockgate.storage_core.spark.session import spark_session

    warehouse = tmp_path_factory.mktemp("warehouse")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in real_server.environment().items() if "LOCKGATE_TEST_S3_URL" in os.environ else ():
            patch.setenv(name, value)  # Spark's processes keep the environment that the JVM was started with
        session = spark_session(
            "lockgate-tests",
            master="local[2,3]",
            config={
                "spark.sql.warehouse.dir": warehouse.as_uri(),
                "spark.sql.shuffle.partitions": "2",
                "spark.driver.memory": "1g",
                **DAEMON,
            },
        )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def destination(tmp_path: Path) -> str:
    """Return a directory that does not exist yet."""
    return str(tmp_path / "lake" / "sales")


@pytest.fixture
def seen(destination: str) -> Callable[[], list[str]]:
    """Return a function that lists the data files visible to a listing reader."""

    def listing() -> list[str]:
        return sorted(info.key for info in visible_files(open_store(destination)))

    return listing


@pytest.fixture
def open_uploads(destination: str) -> Callable[[], list[UploadInfo]]:
    """Return a function that lists the open uploads at the destination."""

    def listing() -> list[UploadInfo]:
        return [upload for page in open_store(destination).upload_pages() for upload in page]

    return listing
