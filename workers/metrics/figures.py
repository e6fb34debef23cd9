"""What a worker's processes count, added up: their tasks, and what they did to the journal.

Each process of the pool counts in files of its own, in a folder that they share: so what a process has
counted outlives it. The files are added up whenever Prometheus fetches the figures.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any, Final

from celery import signals
from opentelemetry import metrics
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

from lockgate.storage_core.prometheus import use_multiprocess_files

_SCOPE: Final = "lockgate.worker"
_SECONDS: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)


class TaskFigures:
    """Counts the tasks of one process by name and outcome, as Celery signals them."""

    def __init__(self) -> None:
        meter = metrics.get_meter(_SCOPE)
        self._begun = meter.create_counter(
            f"{_SCOPE}.tasks_begun", description="Tasks begun; one whose process was killed does not end"
        )
        self._seconds = meter.create_histogram(
            f"{_SCOPE}.task",
            unit="s",
            description="How long tasks took, by how they ended",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._running: dict[str, float] = {}

    def connect(self) -> None:
        """Hear of every task that this process runs, and its forks."""
        signals.task_prerun.connect(self.begin, weak=False)
        signals.task_postrun.connect(self.end, weak=False)

    def begin(self, task: Any, task_id: str, **_: Any) -> None:
        """Count a task that begins."""
        self._begun.add(1, {"task": task.name})
        self._running[task_id] = time.perf_counter()

    def end(self, task: Any, task_id: str, state: str | None = None, **_: Any) -> None:
        """Count a task that ends.

        Args:
            task: It.
            task_id: Of this message.
            state: `SUCCESS`, `FAILURE`, `RETRY`; None where the message was given back.
        """
        began_s = self._running.pop(task_id, None)
        if began_s is not None:
            outcome = (state or "rejected").lower()
            self._seconds.record(time.perf_counter() - began_s, {"task": task.name, "outcome": outcome})


def share_in(folder: Path) -> CollectorRegistry:
    """Have this process, and all that are forked from it, count in a folder; returns what adds them up.

    Args:
        folder: Of this worker alone. What an earlier one left in it is deleted.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    use_multiprocess_files(folder)
    TaskFigures().connect()
    together = CollectorRegistry()
    MultiProcessCollector(together, str(folder))  # type: ignore[no-untyped-call]
    return together
