"""One real Celery worker process, on the embedded broker or the one that is configured."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from lockgate.operators.demo.failed import DemoFailedError
from lockgate.operators.demo.processes import ended
from lockgate.storage_core.settings import Settings
from lockgate.workers.embedded_broker import find_broker, start_broker, stop_broker

PROCESSES: Final = 2


@contextmanager
def running_broker(settings: Settings) -> Iterator[None]:
    """Keep a broker running; stops the embedded one if this started it."""
    ours = settings.broker_url is None and find_broker(settings) is None
    if ours:
        start_broker(settings)
    try:
        yield
    finally:
        if ours:
            stop_broker(settings)


@contextmanager
def running_worker(log: Path, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Keep a Celery worker running, in processes of its own; yields its parent process."""
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [
                *(sys.executable, "-m", "celery", "-A", "workers", "worker"),
                *("-Q", "commit,recovery,sweep", "-c", str(PROCESSES), "-n", f"demo-{os.getpid()}@%h"),
                *("--loglevel", "INFO"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
        ) as process,
        ended(process),
    ):
        yield process


def check_alive(worker: subprocess.Popen[bytes], log: Path) -> None:
    """Make sure that the worker has not ended by itself.

    Raises:
        DemoFailedError: It has.
    """
    if worker.poll() is not None:
        raise DemoFailedError(f"the Celery worker ended with code {worker.returncode}; see {log}")
