"""A standalone Spark cluster on this machine: a master, and two workers that Spark takes for two hosts.

Spark starts a speculative copy of a task on another host only; every address of 127.0.0.0/8 is one.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pyspark

from tests.support.spark.accidents import await_that
from tests.support.spark.python_daemon import DAEMON

HOSTS: Final = ("127.0.0.2", "127.0.0.3")
_QUICK: Final = os.environ["SPARK_SUBMIT_OPTS"]
"""The options of every JVM in tests; see `tests/conftest.py`."""
CLUSTER_CONFIG: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": _QUICK,
    "spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[3]),  # for the tests' own Python daemon
    **DAEMON,
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.efficiency.enabled": "false",
}


@contextmanager
def standalone_cluster(root: Path) -> Iterator[str]:
    """Run a master and two workers of one core each; yields the master's address."""
    with ExitStack() as running:
        log = root / "master.log"
        running.enter_context(_daemon("master.Master", "127.0.0.1", log))
        await_that(lambda: _address(log) is not None, f"Spark's master; see {log}")
        address = _address(log)
        assert address is not None
        for host in HOSTS:
            room = ["--cores", "1", "--memory", "1g", "--work-dir", str(root / host)]
            running.enter_context(_daemon("worker.Worker", host, root / f"{host}.log", *room, address))
        await_that(
            lambda: log.read_text().count("Registering worker") == len(HOSTS), f"Spark's workers; see {log}"
        )
        yield address


def _address(log: Path) -> str | None:
    found = re.search(r"spark://[\d.:]+", log.read_text())
    return found[0] if found else None


@contextmanager
def _daemon(name: str, host: str, log: Path, *arguments: str) -> Iterator[None]:
    """Run one of Spark's daemons in a new session; its executors end with it."""
    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    environment = {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": host,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": _QUICK,
    }
    with (
        log.open("w") as output,
        subprocess.Popen(
            [
                *(home / "bin" / "spark-class", f"org.apache.spark.deploy.{name}"),
                *("--host", host, "--port", "0", "--webui-port", "0", *arguments),
            ],
            env={**os.environ, "PYTHONWARNINGS": "ignore", **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
