"""The Spark session that all tests with a real Spark share: one JVM."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

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
                # Compiling each query takes longer than these few rows; the demo and drivers of their own do.
                "spark.sql.codegen.wholeStage": "false",
                "spark.sql.codegen.factoryMode": "NO_CODEGEN",
                **DAEMON,
            },
        )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
