"""A Redis that is stopped (SIGSTOP) while a driver and a worker use it delays them for a limited time."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from lockgate.storage_core.errors import LockgateError, OutcomeUnknownError
from lockgate.storage_core.settings import Settings
from lockgate.workers import celery_app
from lockgate.workers.broker.embedded_broker import BrokerRecord, find_broker
from lockgate.workers.dispatch import commit_tasks, dispatch_tasks
from lockgate.workers.gather import is_served
from tests.support.workers.celery_worker import StagedJob, connect_again, embedded_broker, worker_process

pytestmark = [pytest.mark.soak, pytest.mark.integration, pytest.mark.timeout(240)]

LIMIT_S = 60.0


@pytest.fixture(autouse=True)
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process wait a second for an answer; a worker waits as long as usual."""
    monkeypatch.setattr(celery_app, "ANSWER_S", 1.0, raising=False)


@contextmanager
def stopped(settings: Settings) -> Iterator[BrokerRecord]:
    """Stop the broker's process until the block ends."""
    record = find_broker(settings)
    assert record is not None
    os.kill(record.pid, signal.SIGSTOP)
    try:
        yield record
    finally:
        os.kill(record.pid, signal.SIGCONT)


def check(error: LockgateError, broker: BrokerRecord, began_s: float) -> None:
    """Check that an error came in time, and names the broker without its password."""
    parts = urlsplit(broker.url)
    assert time.monotonic() - began_s < LIMIT_S
    assert f"127.0.0.1:{parts.port}" in str(error)
    assert str(parts.password) not in str(error)
    assert "gives no answer" in str(error)


def test_a_driver_and_a_worker_go_on_after_a_stop_of_the_broker(tmp_path: Path) -> None:
    with embedded_broker(tmp_path / "home") as settings, worker_process(tmp_path / "log"):
        connect_again()
        staged = StagedJob(tmp_path / "job", settings)
        commit_tasks(*staged.ids, staged.task_ids[:1], timeout_s=120, grace_s=60)
        with stopped(settings) as broker:
            began_s = time.monotonic()
            with pytest.raises(OutcomeUnknownError) as refused:
                commit_tasks(*staged.ids, staged.task_ids, timeout_s=120, grace_s=2)
            check(refused.value, broker, began_s)
            began_s = time.monotonic()
            with pytest.raises(OutcomeUnknownError) as refused:
                dispatch_tasks(*staged.ids, staged.task_ids, expires_s=60)
            check(refused.value, broker, began_s)

        rows = commit_tasks(*staged.ids, staged.task_ids, timeout_s=120, grace_s=60)

        assert sorted(row["task_id"] for row in rows) == sorted(staged.task_ids)
        assert staged.committed_attempts() == sorted(staged.task_ids)
        staged.attach().commit()
        assert staged.visible_rows() == staged.all_rows
        assert is_served("commit")
