"""Tests of a process's task metrics, with one worker thread over Celery's memory broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import signals
from prometheus_client import REGISTRY, CollectorRegistry

from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.settings import load_settings
from lockgate.workers.metrics.counts import TaskMetrics
from tests.support.workers import tasks as worker_tasks
from tests.support.workers.celery_worker import memory_broker, wait_until, worker_thread


@pytest.fixture(scope="module", autouse=True)
def worker() -> Iterator[None]:
    with memory_broker(), worker_thread():
        yield


@pytest.fixture
def counted() -> Iterator[CollectorRegistry]:
    """Count the tasks that run inside the block."""
    figures = TaskMetrics()
    figures.connect()
    yield REGISTRY
    signals.task_prerun.disconnect(figures.begin)
    signals.task_postrun.disconnect(figures.end)


def figure(registry: CollectorRegistry, name: str, **labels: str) -> float:
    return registry.get_sample_value(f"lockgate_worker_{name}", {"task": "test.ended", **labels}) or 0


@pytest.mark.parametrize(
    ("how", "outcomes"),
    [
        ("success", {"success": 1}),
        ("failure", {"failure": 1}),
        ("retry", {"retry": 1, "success": 1}),
        ("rejected", {"rejected": 1}),
    ],
)
def test_a_task_is_counted_by_outcome_and_duration(
    counted: CollectorRegistry, how: str, outcomes: dict[str, int]
) -> None:
    worker_tasks.ended.delay(how)

    for outcome, times in outcomes.items():
        wait_until(lambda: figure(counted, "task_seconds_count", outcome=outcome) == times)  # noqa: B023
        assert figure(counted, "task_seconds_sum", outcome=outcome) > 0
    assert figure(counted, "tasks_begun_total") == sum(outcomes.values())


def test_the_end_of_a_task_that_did_not_start_here_is_not_counted(counted: CollectorRegistry) -> None:
    signals.task_postrun.send(
        worker_tasks.ended, task=worker_tasks.ended, task_id="another's", state="SUCCESS"
    )
    assert figure(counted, "task_seconds_count", outcome="success") == 0


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
def test_an_invalid_port_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, port: str) -> None:
    monkeypatch.setenv("LOCKGATE_WORKER_METRICS_PORT", port)
    with pytest.raises(InvalidInputError, match="LOCKGATE_WORKER_METRICS_PORT"):
        load_settings()
