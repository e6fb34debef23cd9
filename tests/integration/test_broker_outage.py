"""A broker that goes away, refuses or loses messages for a while costs neither the workers nor a job."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lockgate.storage_core.settings import load_settings
from lockgate.workers.celery_app import app
from lockgate.workers.dispatch import commit_tasks
from tests.support.soak import soak_only
from tests.support.workers.celery_worker import StagedJob, connect_again, wait_until, worker_process
from tests.support.workers.redis_server import RestartableRedis

pytestmark = pytest.mark.integration

APPLICATION = "tests.support.workers.lingering_tasks"


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RestartableRedis]:
    """Yield a Redis that this process and its workers use."""
    (tmp_path / "redis").mkdir()
    redis = RestartableRedis(tmp_path / "redis")
    monkeypatch.setenv("LOCKGATE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LOCKGATE_BROKER_URL", redis.url)
    connect_again()
    try:
        yield redis
    finally:
        app.close()
        redis.kill()


class Lingering:
    """A task that a worker runs until it is told that it is enough."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        result = app.send_task("tests.linger", [str(folder)], queue="commit")
        self.id, result.backend = result.id, None  # at its deletion it would ask a broker that is gone
        wait_until(lambda: any(folder.iterdir()))

    def end(self) -> None:
        """Let it end."""
        (self._folder / "enough").touch()


def staged_job(root: Path) -> StagedJob:
    return StagedJob(root, load_settings())


@pytest.mark.parametrize("pool", ["solo", soak_only("prefork"), soak_only("threads")])
def test_a_worker_outlives_a_broker_that_goes_away_refuses_and_loses_messages(
    tmp_path: Path, broker: RestartableRedis, pool: str
) -> None:
    with (
        worker_process(tmp_path / "log", pool=pool, application=APPLICATION) as worker,
        ThreadPoolExecutor(1) as drivers,
    ):
        away = Lingering(tmp_path / "away")
        broker.kill()
        broker.start()
        away.end()
        worker.wait_for_line("Connection to broker lost")
        first = staged_job(tmp_path / "first")
        commit_tasks(*first.ids, first.task_ids, timeout_s=120, grace_s=30)

        broker.client.execute_command("REPLICAOF", "127.0.0.1", "1")
        worker.wait_for_line("read only replica")
        broker.client.execute_command("REPLICAOF", "NO", "ONE")
        second = staged_job(tmp_path / "second")
        commit_tasks(*second.ids, second.task_ids, timeout_s=120, grace_s=30)

        # All of a pool is at work, and does not answer if it is `solo`, for longer than the grace time.
        busy = [Lingering(tmp_path / f"busy-{n}") for n in range(1 if pool == "solo" else 2)]
        third = staged_job(tmp_path / "third")
        committing = drivers.submit(commit_tasks, *third.ids, third.task_ids, timeout_s=120, grace_s=1)
        wait_until(lambda: broker_holds(broker, len(third.task_ids)))
        broker.client.flushall()
        for each in busy:
            each.end()
        assert len(committing.result(120)) == len(third.task_ids)

        assert worker.process.poll() is None
    for job in (first, second, third):
        job.attach().commit()
        assert job.visible_rows() == job.all_rows


def broker_holds(broker: RestartableRedis, count: int) -> bool:
    import redis

    with redis.Redis.from_url(broker.url) as client:
        return bool(client.llen("lockgate:commit") >= count)


@pytest.mark.parametrize("pool", ["prefork", soak_only("solo"), soak_only("threads")])
def test_a_worker_that_waits_for_its_broker_ends_at_a_signal(
    tmp_path: Path, broker: RestartableRedis, pool: str
) -> None:
    with worker_process(tmp_path / "log", pool=pool, application=APPLICATION) as worker:
        unacknowledged = Lingering(tmp_path / "task")
        broker.kill()
        unacknowledged.end()
        worker.wait_for_line("Trying again in")
        began_s = time.monotonic()
        assert worker.stop(signal.SIGTERM) == 0
        assert time.monotonic() - began_s < 10


@pytest.mark.parametrize("pool", ["solo", soak_only("prefork"), soak_only("threads")])
def test_an_idle_worker_ends_at_a_signal_although_its_broker_hangs(
    tmp_path: Path, broker: RestartableRedis, pool: str
) -> None:
    with worker_process(tmp_path / "log", pool=pool) as worker:
        broker.hang()
        began_s = time.monotonic()
        assert worker.stop(signal.SIGTERM) == 0
        assert time.monotonic() - began_s < 10


@pytest.mark.soak
@pytest.mark.parametrize("pool", ["solo", "prefork", "threads"])
def test_a_worker_that_is_to_end_finishes_its_task_although_its_broker_hangs(
    tmp_path: Path, broker: RestartableRedis, pool: str
) -> None:
    with worker_process(tmp_path / "log", pool=pool, application=APPLICATION) as worker:
        task = Lingering(tmp_path / "task")
        broker.hang()
        worker.process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            worker.process.wait(10)
        broker.resume()
        task.end()
        assert worker.process.wait(60) == 0
        assert app.backend.get_task_meta(task.id)["status"] == "SUCCESS"
