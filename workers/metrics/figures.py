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
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.multiprocess import MultiProcessCollector

from lockgate.storage_core.journal.metrics import share_figures

_SECONDS: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)


class TaskFigures:
    """Counts the tasks of one process by name and outcome, as Celery tells of them.

    Args:
        registry: Takes the figures where they are not shared.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._begun = Counter(
            "lockgate_worker_tasks_begun",
            "Tasks begun; one whose process was killed does not end",
            ["task"],
            registry=registry,
        )
        self._seconds = Histogram(
            "lockgate_worker_task_seconds",
            "How long tasks took, by how they ended",
            ["task", "outcome"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._running: dict[str, float] = {}

    def connect(self) -> None:
        """Hear of every task that this process runs, and its forks."""
        signals.task_prerun.connect(self.begin, weak=False)
        signals.task_postrun.connect(self.end, weak=False)

    def begin(self, task: Any, task_id: str, **_: Any) -> None:
        """Count a task that begins."""
        self._begun.labels(task.name).inc()
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
            self._seconds.labels(task.name, outcome).observe(time.perf_counter() - began_s)


def share_in(folder: Path) -> CollectorRegistry:
    """Have this process, and all that are forked from it, count in a folder; returns what adds them up.

    Args:
        folder: Of this worker alone. What an earlier one left in it is deleted.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    share_figures(folder)
    TaskFigures(CollectorRegistry()).connect()
    together = CollectorRegistry()
    MultiProcessCollector(together, str(folder))  # type: ignore[no-untyped-call]
    return together
