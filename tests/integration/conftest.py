"""Real parts, started once: Spark; and what a user can see at a destination."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lockgate.storage_core.commit.destination.visible_files import visible_files
from lockgate.storage_core.stores import UploadInfo, open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two threads, three tries of a task."""
    from lockgate.storage_core.spark import spark_session

    warehouse = tmp_path_factory.mktemp("warehouse")
    session = spark_session(
        "lockgate-tests",
        master="local[2,3]",
        config={
            "spark.sql.warehouse.dir": warehouse.as_uri(),
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.memory": "1g",
            # These runs are too short for the optimising compiler to pay: half the processor time.
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        },
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def destination(tmp_path: Path) -> str:
    """A directory that is not there yet."""
    return str(tmp_path / "lake" / "sales")


@pytest.fixture
def seen(destination: str) -> Callable[[], list[str]]:
    """The data files that a listing reader sees."""

    def listing() -> list[str]:
        return sorted(info.key for info in visible_files(open_store(destination)))

    return listing


@pytest.fixture
def open_uploads(destination: str) -> Callable[[], list[UploadInfo]]:
    """The uploads that are open at the destination."""

    def listing() -> list[UploadInfo]:
        return [upload for page in open_store(destination).upload_pages() for upload in page]

    return listing
