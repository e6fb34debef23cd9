"""Workers are killed with -9 during task commits; every row is visible once and no upload remains."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis

from lockgate.storage_core.errors import OutcomeUnknownError
from lockgate.storage_core.settings import Settings
from lockgate.workers.broker.embedded_broker import find_broker, start_broker
from lockgate.workers.dispatch import commit_tasks, complete_by_workers
from tests.support.soak import sample, soak_only
from tests.support.workers.celery_worker import StagedJob, embedded_broker, wait_until, worker_process

pytestmark = [pytest.mark.fault, pytest.mark.integration]

REDELIVERY_S = "3"
"""Much shorter than in a deployment, so that tasks of a dead worker are soon redelivered."""


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    home = tmp_path_factory.mktemp("home")
    with embedded_broker(home, LOCKGATE_REDELIVERY_S=REDELIVERY_S) as settings:
        yield settings


def check_rows_exactly_once(staged: StagedJob) -> None:
    receipt = staged.attach().commit()

    assert (receipt.files, receipt.rows) == (staged.files, len(staged.all_rows))
    assert staged.visible_rows() == staged.all_rows
    assert len(staged.listed()) == staged.files
    assert staged.open_uploads() == []


POINTS = [
    "task-write.adopt.after",  # the upload is complete but in no pending set
    "task-commit.create.before",
    "task-commit.create.after",  # the task is committed, its message not acknowledged
]


@pytest.mark.parametrize("point", [soak_only("task-write.adopt.after"), "task-commit.create.after"])
def test_another_worker_gets_the_task_of_a_pool_child_killed_in_a_task_commit(
    tmp_path: Path, settings: Settings, point: str
) -> None:
    staged = StagedJob(tmp_path, settings)
    deadly = {"LOCKGATE_FAILPOINTS": f"{point}=kill"}

    with ThreadPoolExecutor(1) as driver, worker_process(tmp_path / "log-1", environment=deadly) as first:
        rows = driver.submit(commit_tasks, *staged.ids, staged.task_ids, timeout_s=300)
        first.wait_for_line("signal 9 (SIGKILL)")
        with worker_process(tmp_path / "log-2", name="second"):
            assert [row["task_id"] for row in rows.result()] == staged.task_ids

    check_rows_exactly_once(staged)


@pytest.mark.parametrize("point", sample(POINTS, every=5))
@pytest.mark.soak
def test_another_worker_gets_the_task_of_a_whole_worker_killed_in_a_task_commit(
    tmp_path: Path, settings: Settings, point: str
) -> None:
    staged = StagedJob(tmp_path, settings)
    deadly = {"LOCKGATE_FAILPOINTS": f"{point}=kill"}

    with (
        ThreadPoolExecutor(1) as driver,
        worker_process(tmp_path / "log-1", pool="solo", environment=deadly) as first,
    ):
        rows = driver.submit(commit_tasks, *staged.ids, staged.task_ids, timeout_s=300)
        assert first.process.wait(300) == -signal.SIGKILL
        with worker_process(tmp_path / "log-2", name="second"):
            assert [row["task_id"] for row in rows.result()] == staged.task_ids

    check_rows_exactly_once(staged)


@pytest.mark.soak
def test_another_worker_continues_a_plan_whose_worker_was_killed(tmp_path: Path, settings: Settings) -> None:
    staged = StagedJob(tmp_path, settings)
    with worker_process(tmp_path / "log-0"):
        commit_tasks(*staged.ids, staged.task_ids, timeout_s=300)
    deadly = {"LOCKGATE_FAILPOINTS": "complete.complete.after=kill@3", "LOCKGATE_PARALLELISM": "1"}

    with (
        ThreadPoolExecutor(1) as driver,
        worker_process(tmp_path / "log-1", pool="solo", environment=deadly) as first,
    ):
        receipt = driver.submit(staged.attach().commit, complete=complete_by_workers)
        assert first.process.wait(300) == -signal.SIGKILL
        assert 0 < len(staged.listed()) < staged.files
        assert staged.visible_rows() == []  # readers of the manifest see only whole jobs
        with worker_process(tmp_path / "log-2", name="second"):
            receipt.result()

    check_rows_exactly_once(staged)


@pytest.mark.parametrize("order", [signal.SIGTERM, signal.SIGQUIT], ids=["warm", "cold"])
@pytest.mark.soak
def test_another_worker_runs_the_tasks_of_a_preempted_one_without_counting_a_failure(
    tmp_path: Path, settings: Settings, order: signal.Signals
) -> None:
    staged = StagedJob(tmp_path, settings, files=24)

    with ThreadPoolExecutor(1) as driver, worker_process(tmp_path / "log-1") as first:
        rows = driver.submit(commit_tasks, *staged.ids, staged.task_ids, timeout_s=300)
        first.wait_for_line(" succeeded in ")
        assert first.stop(order) == 0 or order == signal.SIGQUIT
        with worker_process(tmp_path / "log-2", name="second"):
            # The driver would give up at the first failed task; none fails.
            assert [row["task_id"] for row in rows.result()] == staged.task_ids

    check_rows_exactly_once(staged)


@pytest.mark.soak
def test_messages_are_processed_after_the_broker_was_killed_and_restarted(
    tmp_path: Path, settings: Settings
) -> None:
    staged = StagedJob(tmp_path, settings)
    record = start_broker(settings)

    with ThreadPoolExecutor(1) as driver:
        rows = driver.submit(commit_tasks, *staged.ids, staged.task_ids, timeout_s=300)
        with redis.Redis.from_url(record.url) as client:
            wait_until(lambda: client.llen("lockgate:commit") == staged.files)
            client.config_set("appendfsync", "always")
        os.kill(record.pid, signal.SIGKILL)
        wait_until(lambda: find_broker(settings) is None)
        assert start_broker(settings).url == record.url
        with worker_process(tmp_path / "log"):
            assert [row["task_id"] for row in rows.result()] == staged.task_ids

    check_rows_exactly_once(staged)


@pytest.mark.soak
def test_the_outcome_is_unknown_if_the_broker_stays_down_and_a_repetition_settles_it(
    tmp_path: Path, settings: Settings
) -> None:
    staged = StagedJob(tmp_path, settings)
    record = start_broker(settings)

    with ThreadPoolExecutor(1) as driver:
        rows = driver.submit(commit_tasks, *staged.ids, staged.task_ids, timeout_s=300, grace_s=3)
        with redis.Redis.from_url(record.url) as client:
            wait_until(lambda: client.llen("lockgate:commit") == staged.files)
        os.kill(record.pid, signal.SIGKILL)
        with pytest.raises(OutcomeUnknownError, match=r"the broker \S+ gives no answer"):
            rows.result()

    start_broker(settings)
    with worker_process(tmp_path / "log"):
        commit_tasks(*staged.ids, staged.task_ids, timeout_s=300)
    check_rows_exactly_once(staged)
