"""Tests of large messages between a client, a real Redis and worker pools, some of which are killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery.result import AsyncResult, denied_join_result

from lockgate.storage_core.blobs.cache.process_cache import configured_cache
from lockgate.storage_core.errors import ObjectNotFoundError
from lockgate.storage_core.settings import Settings
from lockgate.workers.broker.embedded_broker import broker_url
from lockgate.workers.celery_app import app
from tests.support.workers import message_tasks, offloading_app
from tests.support.workers.celery_worker import embedded_broker, wait_until, worker_process

pytestmark = pytest.mark.integration

APPLICATION = "tests.support.workers.message_tasks"
BIG = "x" * 5_000
PATIENCE_S = 300


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    home = tmp_path_factory.mktemp("home")
    small = {"LOCKGATE_CELERY_THRESHOLD_BYTES": "1000", "LOCKGATE_REDELIVERY_S": "3"}
    with embedded_broker(home, **small) as settings:
        yield settings


def owners(settings: Settings) -> list[str]:
    return sorted(reference.owner for reference in configured_cache(settings).origin.references())


def arguments_are_let_go(settings: Settings) -> None:
    wait_until(lambda: all(":result:" in owner for owner in owners(settings)), PATIENCE_S)


def all_is_acknowledged() -> None:
    """Wait until the broker has no unacknowledged message: a worker stopped after a result may leave one."""
    with app.connection_for_read() as connection:
        redis = connection.default_channel.client
        wait_until(lambda: redis.hlen("unacked") == 0, PATIENCE_S)


def sent(task: Any, *arguments: Any) -> AsyncResult:
    with denied_join_result():  # without a subscription, which would outlive this module's broker
        return task.delay(*arguments)


def got(result: AsyncResult) -> Any:
    wait_until(result.ready, PATIENCE_S)
    return result.get()


def test_messages_and_results_are_delivered_and_released(tmp_path: Path, settings: Settings) -> None:
    script = f"from {APPLICATION} import converse; print(converse({PATIENCE_S}))"
    with worker_process(tmp_path / "log", application=APPLICATION):
        completed = subprocess.run(
            [sys.executable, "-c", script], check=True, capture_output=True, timeout=600
        )
        arguments_are_let_go(settings)
    assert completed.stdout.decode().strip() == "[50000, [5000, 2], [5000, 10000, 15000], 10001]"
    # Two of the chord: its body has read its members' results, but no client has.
    assert len(owners(settings)) == 1


@pytest.mark.soak
def test_a_stopped_worker_has_released_the_messages_of_its_completed_tasks(
    tmp_path: Path, settings: Settings
) -> None:
    with worker_process(tmp_path / "log", application=APPLICATION) as worker:
        results = [sent(message_tasks.grow, BIG, 0) for _ in range(5)]
        assert [got(result) for result in results] == [""] * 5
        all_is_acknowledged()
        worker.process.terminate()
        worker.process.wait(PATIENCE_S)
    assert [owner for owner in owners(settings) if ":result:" not in owner] == []


@pytest.mark.soak
def test_a_lost_blob_fails_the_task_in_the_worker_process(tmp_path: Path, settings: Settings) -> None:
    result = sent(message_tasks.grow, BIG)
    (reference,) = configured_cache(settings).origin.references(owner=f"receiver:{result.id}")
    files = configured_cache(settings).origin.stores.local  # type: ignore[attr-defined]
    files.delete(reference.job_id, reference.blob_key)
    with worker_process(tmp_path / "log", application=APPLICATION):
        with pytest.raises(ObjectNotFoundError, match=reference.blob_key):
            got(result)
        arguments_are_let_go(settings)


@pytest.mark.fault
@pytest.mark.parametrize("whole", [False, True], ids=["pool process", "worker"])
@pytest.mark.soak
def test_arguments_of_a_killed_task_are_kept_for_its_redelivery(
    tmp_path: Path, settings: Settings, whole: bool
) -> None:
    result = sent(message_tasks.die, BIG, str(tmp_path / "marker"), whole)
    with worker_process(tmp_path / "log-1", application=APPLICATION) as first:
        if whole:
            assert first.process.wait(PATIENCE_S) == -signal.SIGKILL
            assert owners(settings).count(f"receiver:{result.id}") == 1
            with worker_process(tmp_path / "log-2", name="second", application=APPLICATION):
                assert got(result) == 5_000
                arguments_are_let_go(settings)
        else:
            assert got(result) == 5_000
            # The replacement process was forked from a worker with an open journal.
            assert len(got(sent(message_tasks.grow, BIG, 2))) == 10_000
            arguments_are_let_go(settings)


@pytest.mark.soak
def test_a_worker_of_an_application_with_only_install_offload_deletes_its_cache_as_it_exits(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    url = broker_url(settings)
    monkeypatch.setattr(offloading_app.app.conf, "broker_url", url)
    monkeypatch.setattr(offloading_app.app.conf, "result_backend", url)
    with worker_process(
        tmp_path / "log",
        queues=[offloading_app.QUEUE],
        application="tests.support.workers.offloading_app",
        environment={"GUEST_URL": url, "LOCKGATE_BLOB_CACHE_DIR": str(cache)},
    ):
        assert got(sent(offloading_app.length, "x" * 5_000)) == 5_000
        assert (cache / "blobs" / "no_job").is_dir()
    assert not cache.exists()
    offloading_app.app.close()
