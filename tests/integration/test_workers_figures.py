"""Tests of a real worker's metrics endpoint: it sums the counts of all processes of the pool."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import psutil
import pytest

from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.settings import Settings
from lockgate.workers.dispatch import commit_tasks
from tests.support.postgres import free_port
from tests.support.soak import soak_only
from tests.support.workers.celery_worker import StagedJob, embedded_broker, wait_until, worker_process

pytestmark = pytest.mark.integration

COMMIT = 'task="lockgate.commit_task"'


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Return settings of a journal and a broker that all processes share."""
    with embedded_broker(tmp_path_factory.mktemp("home"), LOCKGATE_REDELIVERY_S="20") as settings:
        yield settings


@pytest.fixture
def port() -> str:
    return str(free_port())


def fetched(port: str) -> dict[str, float]:
    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


def ended(figures: dict[str, float], outcome: str) -> float:
    return figures.get(f'lockgate_worker_task_seconds_count{{outcome="{outcome}",{COMMIT}}}', 0)


def entries(figures: dict[str, float]) -> float:
    return figures.get('lockgate_journal_entries_total{journal="main"}', 0)


@pytest.mark.parametrize("pool", ["prefork", soak_only("solo")])
def test_a_worker_reports_tasks_by_outcome_and_entries_of_all_its_processes(
    tmp_path: Path, settings: Settings, port: str, pool: str
) -> None:
    staged = StagedJob(tmp_path, settings)
    with worker_process(tmp_path / "log", pool=pool, environment={"LOCKGATE_WORKER_METRICS_PORT": port}):
        commit_tasks(*staged.ids, staged.task_ids)
        with pytest.raises(LockgateError):
            commit_tasks(*staged.ids, ["no-such-task"])
        wait_until(lambda: ended(fetched(port), "failure") == 1)
        figures = fetched(port)

    assert ended(figures, "success") == 6
    assert figures[f"lockgate_worker_tasks_begun_total{{{COMMIT}}}"] == 7
    assert figures[f'lockgate_worker_task_seconds_sum{{outcome="success",{COMMIT}}}'] > 0
    assert entries(figures) == 6  # one entry per task commit
    with pytest.raises(URLError):
        fetched(port)


@pytest.mark.soak
def test_counts_of_a_killed_pool_process_are_kept_and_its_successor_adds_to_them(
    tmp_path: Path, settings: Settings, port: str
) -> None:
    staged = StagedJob(tmp_path, settings)
    with worker_process(tmp_path / "log", environment={"LOCKGATE_WORKER_METRICS_PORT": port}) as worker:
        commit_tasks(*staged.ids, staged.task_ids[:3])
        wait_until(
            lambda: ended(fetched(port), "success") == 3
        )  # a result is sent before the task is counted
        for child in psutil.Process(worker.pid).children():
            child.kill()
        commit_tasks(*staged.ids, staged.task_ids[3:])

        def all_are_counted() -> bool:
            figures = fetched(port)
            # Of a task that is delivered again because its process was killed, both runs may count, and both
            # entries; if those of the killed processes were lost, there would be three.
            return ended(figures, "success") >= 6 and entries(figures) >= 6

        wait_until(all_are_counted)


@pytest.mark.soak
def test_a_second_worker_with_the_same_port_fails_to_start_and_reports_the_reason(
    tmp_path: Path, settings: Settings, port: str
) -> None:
    staged = StagedJob(tmp_path, settings)
    environment = {"LOCKGATE_WORKER_METRICS_PORT": port}
    with worker_process(tmp_path / "first", environment=environment):
        commit_tasks(*staged.ids, staged.task_ids)
        refused = subprocess.run(
            [sys.executable, "-m", "celery", "-A", "lockgate.workers", "worker", "-n", "second@%h"],
            env={**os.environ, **environment},
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )
        wait_until(lambda: ended(fetched(port), "success") == 6)
    assert refused.returncode != 0
    assert f"LOCKGATE_WORKER_METRICS_PORT={port}: Address already in use" in refused.stderr + refused.stdout
