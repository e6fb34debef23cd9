"""Tests of session tokens in messages and results, with one worker thread over Celery's memory broker.

Sender and worker are one process here, so the tests set explicitly what each of them has seen.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from lockgate.storage_core.journal import Journal, Stamp
from lockgate.storage_core.journal.process_journal import close_journals, configured_journal
from lockgate.storage_core.settings import load_settings
from lockgate.workers.celery_app import COMMIT_QUEUE
from lockgate.workers.gather import gather
from lockgate.workers.session_token import HEADER
from tests.support.journal.observers import take
from tests.support.workers import tasks as worker_tasks
from tests.support.workers.celery_worker import memory_broker, worker_thread


@pytest.fixture(scope="module", autouse=True)
def worker() -> Iterator[None]:
    with memory_broker(), worker_thread():
        yield


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    worker_tasks.TRIES.clear()
    worker_tasks.ANSWER.clear()


def opened() -> Journal:
    journal = configured_journal(load_settings())
    assert journal is not None
    return journal


def ran(task: Any, *arguments: Any, **options: Any) -> dict[str, Any]:
    signature = task.s(*arguments).set(**options)
    [(_, row)] = gather([signature], work="work", queue=COMMIT_QUEUE, timeout_s=60, grace_s=60)
    assert isinstance(row, dict), row
    return row


def test_without_a_journal_a_message_has_no_header_and_the_result_is_the_row_alone() -> None:
    assert ran(worker_tasks.received) == {"header": None, "seen": None}
    assert worker_tasks.received.apply_async().get(timeout=60) == {"header": None, "seen": None}


def test_a_message_carries_the_token_of_its_sender() -> None:
    stamp = take(opened())
    assert ran(worker_tasks.received)["header"] == f"main@{opened().identity}={stamp}"


def test_a_worker_extracts_the_token_before_the_task_runs() -> None:
    token = f"main@{opened().identity}=1.7"
    close_journals()

    row = ran(worker_tasks.received, headers={HEADER: token})

    assert row == {"header": token, "seen": token}
    assert opened().seen == Stamp(1, 7)


def test_a_result_carries_the_token_of_the_worker_and_its_reader_extracts_it() -> None:
    token = f"main@{opened().identity}=1.9"

    # The token that a remote worker would add to its row.
    worker_tasks.ANSWER[HEADER] = token
    outcome = worker_tasks.received.apply_async().get(timeout=60)
    assert outcome[HEADER] == token
    assert HEADER not in ran(worker_tasks.received)

    assert opened().seen == Stamp(1, 9)


def test_a_retry_carries_the_token_of_the_previous_try() -> None:
    row = ran(worker_tasks.stubborn, True)

    identity = opened().identity
    assert row["tries"] == ["", f"main@{identity}=1.1", f"main@{identity}=1.2"]


@pytest.mark.parametrize("garbage", ["nonsense", 7, None])
def test_a_task_with_an_invalid_token_header_runs_normally(
    garbage: object, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        row = ran(worker_tasks.received, headers={HEADER: garbage})
    assert row["seen"] is None
    assert ("it is ignored" in caplog.text) is bool(garbage)


def test_a_task_called_as_a_function_behaves_as_the_function() -> None:
    take(opened())
    assert HEADER not in worker_tasks.received()
