"""A Spark Connect server on this machine, with one core."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from tests.support.spark.accidents import await_that


@contextmanager
def connect_server(log: Path) -> Iterator[str]:
    """Run a server until the block ends; yields its URL."""
    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "spark.connect.grpc.binding.port": port,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": log.with_suffix(".warehouse").as_uri(),
    }
    command = [str(home / "bin" / "spark-submit"), "--master", "local[1]"]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    with (
        log.open("w") as output,
        subprocess.Popen(
            command,
            env={**os.environ, "SPARK_HOME": str(home), "PYTHONWARNINGS": "ignore"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        try:
            await_that(lambda: _answers(port), f"Spark Connect; see {log}")
            yield f"sc://127.0.0.1:{port}/;user_id=airflow"
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def _answers(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0
