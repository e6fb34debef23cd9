"""Tests of session tokens between a sender and a real worker, which read at a standby one hour behind.

Each test also shows that a read without a token returns an old state.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery.result import denied_join_result
from celery.states import READY_STATES

from lockgate.storage_core.journal import Journal
from lockgate.storage_core.journal.observers.process_reader import configured_reads
from lockgate.storage_core.journal.process_journal import close_journals, configured_journal
from lockgate.storage_core.settings import Settings, load_settings
from lockgate.workers.celery_app import COMMIT_QUEUE, app
from lockgate.workers.gather import gather
from tests.support.journal.observers import take
from tests.support.postgres import UNSYNCED, Server, primary
from tests.support.workers import reading_worker
from tests.support.workers.celery_worker import embedded_broker, wait_until, worker_process

pytestmark = [pytest.mark.soak, pytest.mark.integration, pytest.mark.requires("postgres")]

PATIENCE_S = 120.0


@pytest.fixture
def root() -> Iterator[Path]:
    # Not below pytest's own directory, which each new run of pytest closes to other users.
    with tempfile.TemporaryDirectory(prefix="lockgate-tokens-") as folder:
        yield Path(folder)


@pytest.fixture
def settings(root: Path) -> Iterator[Settings]:
    """Return settings with a primary that has one row, and a standby that delays its replay by an hour."""
    with primary(root / "primary", **UNSYNCED) as server:
        with embedded_broker(root / "home", LOCKGATE_JOURNAL_URL=server.url):
            take(opened(load_settings()))
        standby = server.new_standby(root / "standby", recovery_min_apply_delay="1h")
        try:
            with embedded_broker(root / "home", **observed(server, standby)) as settings:
                yield settings
        finally:
            close_journals()
            standby.stop("immediate")


def observed(server: Server, standby: Server) -> dict[str, str]:
    return {
        "LOCKGATE_JOURNAL_URL": server.url,
        "LOCKGATE_OBSERVER_URLS": json.dumps([standby.url]),
        "LOCKGATE_OBSERVER_WAIT_MS": "0",
    }


def opened(settings: Settings) -> Journal:
    journal = configured_journal(settings)
    assert journal is not None
    return journal


def with_tokens(task: Any) -> dict[str, Any]:
    [(_, row)] = gather([task.s()], work="work", queue=COMMIT_QUEUE, timeout_s=PATIENCE_S, grace_s=PATIENCE_S)
    assert isinstance(row, dict), row
    return row


def without_tokens(task: Any) -> dict[str, Any]:
    """Send like a program without session tokens."""
    with denied_join_result():  # like `gather`: a subscription would outlive this test's broker
        sent = app.send_task(task.name)
    wait_until(lambda: app.backend.get_state(sent.id) in READY_STATES, within_s=PATIENCE_S)
    row = app.backend.get_result(sent.id)
    assert isinstance(row, dict), row
    return row


def test_a_worker_reads_the_writes_of_its_sender(settings: Settings, tmp_path: Path) -> None:
    with worker_process(tmp_path / "log", application="tests.support.workers.reading_worker", pool="solo"):
        assert with_tokens(reading_worker.read) == {"rows": 1}
        take(opened(settings))
        assert without_tokens(reading_worker.read)["rows"] == 1
        assert with_tokens(reading_worker.read) == {"rows": 2}


def test_a_sender_reads_the_writes_of_the_worker(settings: Settings, tmp_path: Path) -> None:
    reads = configured_reads(settings)
    assert reads is not None
    with (
        reads,
        worker_process(tmp_path / "log", application="tests.support.workers.reading_worker", pool="solo"),
    ):
        assert reads.read(reading_worker.rows) == 1
        without_tokens(reading_worker.write)
        assert reads.read(reading_worker.rows) == 1
        assert with_tokens(reading_worker.write) == {}
        assert reads.read(reading_worker.rows) == 3
