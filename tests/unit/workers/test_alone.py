"""Tests of dispatch without workers, and of the application's configuration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lockgate.storage_core.errors import InvalidInputError, NoWorkerError, OutcomeUnknownError
from lockgate.workers import gather
from lockgate.workers.celery_app import COMMIT_QUEUE, QUEUES, app, configuration, result_backend
from lockgate.workers.dispatch import commit_tasks, complete_by_workers
from lockgate.workers.task_commit import commit_staged_task
from tests.support.workers.celery_worker import StagedJob, memory_broker, worker_thread


@pytest.fixture(autouse=True)
def broker() -> Iterator[None]:
    with memory_broker():
        yield


def test_dispatching_no_tasks_requires_no_worker(staged: StagedJob) -> None:
    assert commit_tasks(*staged.ids, []) == []


def test_without_a_worker_the_error_names_the_command_that_starts_one(
    staged: StagedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "PING_S", 0.1)

    with pytest.raises(NoWorkerError, match=r"celery -A lockgate\.workers worker -Q commit"):
        commit_tasks(*staged.ids, staged.task_ids, grace_s=0.2)


def test_a_worker_that_listens_to_other_queues_only_is_not_counted(
    staged: StagedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "PING_S", 0.5)

    with (
        worker_thread("sweep"),
        pytest.raises(NoWorkerError, match="no worker listens on queue 'commit'"),
    ):
        commit_tasks(*staged.ids, staged.task_ids, grace_s=0.2)


def test_after_the_timeout_the_outcome_is_unknown_and_unread_messages_expire(staged: StagedJob) -> None:
    with pytest.raises(OutcomeUnknownError, match=r"6 of 6 tasks gave no answer in 0 s"):
        commit_tasks(*staged.ids, staged.task_ids, timeout_s=0.2)

    with app.connection_for_read() as connection:
        message = connection.default_channel.basic_get(COMMIT_QUEUE, no_ack=True)
    assert message.headers["expires"] is not None


def test_without_workers_a_decided_plan_is_completed_by_its_driver(
    staged: StagedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "PING_S", 0.1)
    for task in staged.task_ids:
        commit_staged_task(*staged.ids, task)

    def complete(*plan: Any) -> Iterator[Any]:
        return complete_by_workers(*plan, grace_s=0.2)

    staged.attach().commit(complete=complete)

    assert staged.visible_rows() == staged.all_rows
    assert staged.open_uploads() == []


def test_messages_are_acknowledged_late_and_json_only() -> None:
    settings = configuration()

    assert settings["task_acks_late"]
    assert settings["task_reject_on_worker_lost"]
    assert settings["worker_prefetch_multiplier"] == 1
    assert (settings["accept_content"], settings["task_serializer"]) == (["json"], "json")
    assert {route["queue"] for route in settings["task_routes"].values()} == set(QUEUES)


def test_every_task_has_a_route() -> None:
    app.loader.import_default_modules()

    ours = {name for name in app.tasks if name.startswith("lockgate.")}

    assert ours == set(configuration()["task_routes"])


@pytest.mark.parametrize("url", ["amqp://guest@host//", "sqs://"])
def test_only_redis_is_accepted_as_a_result_backend(url: str) -> None:
    with pytest.raises(InvalidInputError, match="is not a Redis"):
        result_backend(url)
