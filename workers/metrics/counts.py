"""Count tasks and journal writes in all processes of a worker, and sum the counts.

Each process of the pool counts in files in a shared folder, so its counts survive its end. The files are
summed whenever Prometheus fetches the metrics.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final

from celery import signals
from prometheus_client import CollectorRegistry, Counter, Histogram, values
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from lockgate.storage_core.stores.os_errors import translated
from lockgate.workers.broker.broker_keys import queue_lengths
from lockgate.workers.celery_app import QUEUES

_SECONDS: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)


@cache
def _begun() -> Counter:
    about = "Tasks begun; a task whose process was killed does not end"
    return Counter("lockgate_worker_tasks_begun", about, ("task",))


@cache
def _seconds() -> Histogram:
    about = "Duration of tasks, by outcome"
    return Histogram("lockgate_worker_task_seconds", about, ("task", "outcome"), buckets=_SECONDS)


class TaskMetrics:
    """Counts the tasks of one process by name and outcome, from Celery's signals."""

    def __init__(self) -> None:
        self._running: dict[str, float] = {}

    def connect(self) -> None:
        """Count every task that this process and its forks run."""
        signals.task_prerun.connect(self.begin, weak=False)
        signals.task_postrun.connect(self.end, weak=False)

    def begin(self, task: Any, task_id: str, **_: Any) -> None:
        """Count a task that begins."""
        _begun().labels(task.name).inc()
        self._running[task_id] = time.perf_counter()

    def end(self, task: Any, task_id: str, state: str | None = None, **_: Any) -> None:
        """Count a task that ends.

        Args:
            task: The task.
            task_id: Id of this run.
            state: `SUCCESS`, `FAILURE`, `RETRY`; None: the message was rejected.
        """
        began_s = self._running.pop(task_id, None)
        if began_s is not None:
            outcome = (state or "rejected").lower()
            _seconds().labels(task.name, outcome).observe(time.perf_counter() - began_s)


class QueueLengths(Collector):
    """Asks the broker at each scrape how many messages wait; all workers of a broker answer the same."""

    def __init__(self, app: Any) -> None:
        self._app = app

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Return nothing, so that the registration asks no broker."""
        return ()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return the gauge; without a value if the broker does not answer."""
        found = GaugeMetricFamily("lockgate_queue_length", "Messages that wait in a queue", labels=["queue"])
        for queue, length in queue_lengths(self._app, QUEUES).items():
            found.add_metric([queue], length)
        return [found]


def count_in_folder(folder: Path) -> CollectorRegistry:
    """Make this process and its forks count in a folder, and return the registry that sums the counts.

    Args:
        folder: Folder of this worker alone; files of an earlier worker are deleted.
    """
    shutil.rmtree(folder, ignore_errors=True)
    with translated("make", str(folder), changes=True):
        folder.mkdir(parents=True)
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
    values.ValueClass = values.MultiProcessValue()  # type: ignore[no-untyped-call]  # chosen at import otherwise
    TaskMetrics().connect()
    sums = CollectorRegistry()
    MultiProcessCollector(sums, str(folder))  # type: ignore[no-untyped-call]
    return sums
