"""The embedded broker is started by the first task, not by a command that only looks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery, signals
from celery.beat import Service

from lockgate.storage_core.errors import StoreUnavailableError
from lockgate.storage_core.settings import Settings
from lockgate.workers.broker.embedded_broker import broker_dir, find_broker, start_broker, stop_broker
from lockgate.workers.celery_app import app
from tests.support.workers.celery_worker import connect_again, embedded_broker

pytestmark = pytest.mark.integration


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    with embedded_broker(tmp_path / "home") as settings:
        yield settings


def celery(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "celery", "-A", "lockgate.workers", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_report_starts_no_broker(settings: Settings) -> None:
    report = celery("report")
    assert report.returncode == 0
    assert "task_default_queue" in report.stdout
    assert not broker_dir(settings).exists()


def test_a_command_that_looks_at_workers_reports_that_no_broker_runs(settings: Settings) -> None:
    status = celery("status")
    assert status.returncode != 0
    assert "lockgate broker start" in status.stdout + status.stderr
    assert find_broker(settings) is None


def test_the_first_task_starts_the_broker_and_later_looks_find_it(settings: Settings) -> None:
    with pytest.raises(StoreUnavailableError, match="lockgate broker start"), app.connection_for_read():
        pass
    with pytest.raises(StoreUnavailableError, match="lockgate broker start"):
        app.AsyncResult("unknown").ready()
    app.send_task("lockgate.sweep_blobs", [True, None], queue="sweep")
    assert find_broker(settings) is not None
    connect_again()
    with app.connection_for_read() as connection:
        assert connection.default_channel.basic_get("sweep") is not None
    assert app.AsyncResult("unknown").ready() is False


def test_a_broker_with_a_new_address_is_found(settings: Settings) -> None:
    first = start_broker(settings)
    app.send_task("lockgate.sweep_blobs", [True, None], queue="sweep")
    stop_broker(settings)
    (broker_dir(settings) / "broker.json").unlink()
    second = start_broker(settings)
    assert second.url != first.url
    connect_again()
    app.send_task("lockgate.sweep_blobs", [True, None], queue="sweep")
    assert app.conf.broker_url == app.conf.result_backend == second.url


def test_the_scheduler_of_this_application_starts_the_broker_before_it_connects(settings: Settings) -> None:
    signals.beat_init.send(sender=Service(Celery("another", broker="memory://", set_as_current=False)))
    assert find_broker(settings) is None
    signals.beat_init.send(sender=Service(app))
    broker = find_broker(settings)
    assert broker is not None
    with app.connection_for_write() as connection:
        assert connection.as_uri(include_password=True).startswith(broker.url)
