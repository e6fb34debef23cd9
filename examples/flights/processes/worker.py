"""Run a Celery worker, on the configured broker or the embedded one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from examples.flights.processes.children import started
from examples.flights.steps import DemoFailedError
from lockgate.storage_core.settings import Settings
from lockgate.workers.broker.embedded_broker import find_broker, start_broker, stop_broker

PROCESSES: Final = 2


@contextmanager
def running_broker(settings: Settings) -> Iterator[None]:
    """Run a broker during the block; stop the embedded one afterwards, if it was started here."""
    is_started_here = settings.broker_url is None and find_broker(settings) is None
    if is_started_here:
        start_broker(settings)
    try:
        yield
    finally:
        if is_started_here:
            stop_broker(settings)


@contextmanager
def running_worker(log: Path, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a Celery worker during the block and yield its parent process."""
    command = [
        *(sys.executable, "-m", "celery", "-A", "lockgate.workers", "worker"),
        *("-Q", "commit,recovery,sweep", "-c", str(PROCESSES), "-n", f"demo-{os.getpid()}@%h"),
        *("--loglevel", "INFO"),
    ]
    with started(command, log, environment) as process:
        yield process


def check_alive(worker: subprocess.Popen[bytes], log: Path) -> None:
    """Check that the worker still runs.

    Raises:
        DemoFailedError: It has ended.
    """
    if worker.poll() is not None:
        raise DemoFailedError(f"the Celery worker ended with code {worker.returncode}; see {log}")
