"""Deferred tasks: they dispatch once, free their slot, and attach to what was dispatched when they resume."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowNotFoundException,
    AirflowSensorTimeout,
    TaskDeferred,
)

from lockgate.operators import (
    JobCommitOperator,
    JobRecoveryOperator,
    JobSensor,
    ManifestSensor,
    TaskCommitOperator,
)
from lockgate.operators import condition_trigger as conditions
from lockgate.operators.condition_trigger import ConditionTrigger
from lockgate.operators.dag_run.job_handle import attach, handle_of
from lockgate.operators.deferral import is_deferrable
from lockgate.storage_core.commit.job_summary import list_jobs
from lockgate.storage_core.commit.leases.job_lease import JobLeaseState
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.errors import NoWorkerError, ObjectNotFoundError, OutcomeUnknownError
from lockgate.workers.broker.broker_keys import HeldMessages
from lockgate.workers.celery_app import app
from lockgate.workers.task_commit import commit_staged_task
from tests.support.airflow.task_run import TaskRun
from tests.support.commit.crash_harness import die_at
from tests.support.commit.destination import World, write
from tests.support.workers.celery_worker import StagedJob, memory_broker, worker_thread


@pytest.fixture(autouse=True)
def broker() -> Iterator[None]:
    with memory_broker():
        yield


def context(task_id: str = "tasks") -> Any:
    return TaskRun(task_id=task_id).context()


def deferred(operator: Any) -> TaskDeferred:
    """Execute a task until it frees its slot."""
    with pytest.raises(TaskDeferred) as caught:
        operator.execute(context(operator.task_id))
    return caught.value


def restored(found: TaskDeferred) -> Any:
    """Return the trigger as another process makes it, from JSON."""
    path, arguments = found.trigger.serialize()
    assert path == "lockgate.operators.condition_trigger.ConditionTrigger"
    return ConditionTrigger(**{**json.loads(json.dumps(arguments)), "poll_s": 0.01, "not_before_s": 0.0})


def event_of(trigger: Any) -> Any:
    async def first() -> Any:
        return (await anext(trigger.run())).payload

    return asyncio.run(first())


def resume(operator: Any, found: TaskDeferred, event: Any) -> Any:
    kwargs = json.loads(json.dumps(found.kwargs))
    return operator.resume_execution(found.method_name, {**kwargs, "event": event}, context())


def commit_tasks(staged: StagedJob, **options: Any) -> TaskCommitOperator:
    return TaskCommitOperator(task_id="tasks", job=handle_of(staged.job), deferrable=True, **options)


def test_a_task_commit_frees_its_slot_and_sums_the_results_when_it_resumes(staged: StagedJob) -> None:
    operator = commit_tasks(staged)
    found = deferred(operator)
    with worker_thread():
        event = event_of(restored(found))
        assert event == {"why": conditions.ALL_ENDED}

    added = resume(operator, found, event)

    assert (added["tasks"], added["files"], added["rows"]) == (6, 6, 60)
    assert staged.committed_attempts() == staged.task_ids


def test_the_arguments_of_a_trigger_are_scalars_without_an_address_of_the_broker(staged: StagedJob) -> None:
    _, arguments = deferred(commit_tasks(staged)).trigger.serialize()

    assert {name: value for name, value in arguments.items() if value is None} == {
        "aws_conn_id": None,
        "lockgate_conn_id": None,
    }
    assert arguments["arguments"].keys() == {"batch", "count", "queue", "grace_s"}
    assert "://" not in json.dumps(arguments)


def test_a_task_stays_deferred_until_airflows_executor_has_reported_its_process(staged: StagedJob) -> None:
    before_s = time.time()
    _, arguments = deferred(commit_tasks(staged)).trigger.serialize()
    assert arguments["not_before_s"] >= before_s + 10
    with worker_thread():
        trigger = ConditionTrigger(**{**arguments, "not_before_s": time.time() + 0.3})
        event_of(trigger)
    assert time.time() >= trigger.not_before_s


def test_a_restarted_triggerer_attaches_to_what_was_dispatched(staged: StagedJob) -> None:
    operator = commit_tasks(staged)
    found = deferred(operator)

    async def killed() -> None:
        asking = asyncio.ensure_future(anext(restored(found).run()))
        await asyncio.sleep(0.05)
        asking.cancel()

    asyncio.run(killed())
    with worker_thread():
        event = event_of(restored(found))
    resume(operator, found, event)

    assert staged.committed_attempts() == staged.task_ids


def test_a_resumed_task_sends_nothing_again(staged: StagedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    operator = commit_tasks(staged)
    found = deferred(operator)
    with worker_thread():
        event = event_of(restored(found))
    monkeypatch.setattr(app, "send_task", lambda *_, **__: pytest.fail("sent again"))

    assert resume(operator, found, event)["tasks"] == 6


def test_a_mapped_task_that_ends_does_not_shorten_the_suspension_of_those_that_are_deferred(
    staged: StagedJob,
) -> None:
    options = {"suspend_timeout_s": 0.0, "timeout_s": 3600.0}
    chunk = commit_tasks(staged, task_ids=staged.task_ids[:1], **options)
    found = deferred(chunk)
    deferred(commit_tasks(staged, task_ids=staged.task_ids[1:], **options))
    with worker_thread():
        resume(chunk, found, event_of(restored(found)))

    [job] = list_jobs(staged.destination)
    assert job.lease is JobLeaseState.SUSPENDED


def test_without_a_worker_the_task_is_resumed_after_the_grace_time_and_says_so(staged: StagedJob) -> None:
    operator = commit_tasks(staged, grace_s=0.0)
    found = deferred(operator)
    event = event_of(restored(found))
    assert event == {"why": conditions.NO_WORKER}

    with pytest.raises(NoWorkerError, match="no worker listens on queue"):  # which Airflow retries
        resume(operator, found, event)


def test_after_the_deadline_the_task_is_resumed_and_fails_with_what_is_open(staged: StagedJob) -> None:
    operator = commit_tasks(staged, timeout_s=0.0)
    found = deferred(operator)
    event = event_of(restored(found))
    assert event == {"why": "the time is over"}

    with pytest.raises(OutcomeUnknownError, match="6 of 6 tasks gave no answer"):
        resume(operator, found, event)


def test_a_user_who_stops_a_deferred_task_withdraws_what_no_worker_has_begun(
    staged: StagedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    revoked: list[list[str]] = []
    monkeypatch.setattr(app.control, "revoke", revoked.append)
    found = deferred(commit_tasks(staged))

    asyncio.run(restored(found).on_kill())

    assert revoked == [[f"{found.kwargs['batch']}-{n}" for n in range(6)]]


def test_an_empty_chunk_is_not_deferred(staged: StagedJob) -> None:
    assert commit_tasks(staged, task_ids=[]).execute(context())["tasks"] == 0


def test_a_job_commit_defers_after_the_decision_and_ends_the_job_when_it_resumes(staged: StagedJob) -> None:
    for task in staged.task_ids:
        commit_staged_task(*staged.ids, task)
    operator = JobCommitOperator(
        task_id="commit", job=handle_of(staged.job), complete_by="workers", deferrable=True
    )
    found = deferred(operator)
    assert staged.attach().phase() is JobPhase.DECIDED

    with worker_thread():
        event = event_of(restored(found))
    receipt = resume(operator, found, event)

    assert receipt["rows"] == 60
    assert staged.attach().phase() is JobPhase.COMMITTED
    assert staged.visible_rows() == staged.all_rows


def test_recovery_defers_and_reports_what_the_workers_did(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = world.open_job("sales")
    write(job, "task-0", {"a.txt": b"1"})
    die_at("complete.complete.before", job.commit)
    operator = JobRecoveryOperator(
        task_id="recover", destinations=[world.url], recover_by="workers", deferrable=True
    )
    found = deferred(operator)
    with worker_thread():
        event = event_of(restored(found))

    assert resume(operator, found, event) == {"roll forward": 1}
    assert world.visible() == {"a.txt": b"1"}


def test_the_default_is_that_of_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_deferrable(None)
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", "True")
    assert is_deferrable(None)
    assert not is_deferrable(False)


def test_a_job_sensor_waits_for_a_phase_and_returns_the_one_it_found(staged: StagedJob) -> None:
    sensor = JobSensor(task_id="wait", job=handle_of(staged.job), phase="published", deferrable=True)
    found = deferred(sensor)
    for task in staged.task_ids:
        commit_staged_task(*staged.ids, task)
    staged.attach().commit()

    event = event_of(restored(found))

    assert event == {"why": "committed"}
    assert resume(sensor, found, event) == "committed"
    assert sensor.execute(context("wait")) == "committed"


def test_a_job_sensor_fails_at_once_if_the_job_can_never_reach_the_phase(staged: StagedJob) -> None:
    sensor = JobSensor(task_id="wait", job=handle_of(staged.job), deferrable=True)
    found = deferred(sensor)
    staged.attach().abort("wrong data")

    with pytest.raises(AirflowFailException, match="is failed: it never becomes committed"):
        resume(sensor, found, event_of(restored(found)))


def test_a_job_sensor_refuses_an_unknown_phase(staged: StagedJob) -> None:
    with pytest.raises(AirflowFailException, match="phase='done': must be one of open, decided"):
        JobSensor(task_id="wait", job=handle_of(staged.job), phase="done").poke(context())


def test_a_manifest_sensor_waits_for_a_turn_and_for_newer_data(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sensor = ManifestSensor(task_id="wait", destination=world.url, deferrable=True)
    found = deferred(sensor)
    job = world.open_job("sales")
    write(job, "task-0", {"a.txt": b"1"})
    receipt = job.commit()
    aborted = world.open_job("other")
    write(aborted, "task-0", {"b.txt": b"1"})
    aborted.abort()

    assert event_of(restored(found)) == {"why": "turn 1"}
    assert resume(sensor, found, {"why": "turn 1"})["job_id"] == "sales-g1"

    def is_there(**options: Any) -> bool:
        return bool(ManifestSensor(task_id="wait", destination=world.url, **options).poke(context()))

    assert is_there(newer_than=f"{_iso(receipt.published_s - 1)}")
    assert not is_there(newer_than=_iso(receipt.published_s + 1))
    assert not is_there(turn=2)
    with pytest.raises(AirflowFailException, match="must be a time with its zone"):
        is_there(newer_than="yesterday")


def test_a_sensor_whose_time_is_over_says_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    sensor = ManifestSensor(task_id="wait", destination=world.url, deferrable=True, timeout=0)
    found = deferred(sensor)
    with pytest.raises(AirflowSensorTimeout, match="not so within 0 s"):
        resume(sensor, found, event_of(restored(found)))


def _iso(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(seconds))


def test_a_store_that_fails_is_asked_again(staged: StagedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    found = deferred(JobSensor(task_id="wait", job=handle_of(staged.job), phase="failed", deferrable=True))
    answers: list[Any] = [OutcomeUnknownError("no answer"), "failed"]

    def ask(_condition: conditions.JobReached) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(conditions.JobReached, "ask", ask)
    assert event_of(restored(found)) == {"why": "failed"}


def test_a_connection_that_cannot_be_read_now_is_read_again(
    staged: StagedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = deferred(JobSensor(task_id="wait", job=handle_of(staged.job), phase="failed", deferrable=True))
    staged.attach().abort()
    answers: list[Any] = [AirflowNotFoundException("the API server restarts"), None]

    def read(*_: Any) -> Any:
        if answer := answers.pop(0):
            raise answer

    monkeypatch.setattr("lockgate.operators.condition_trigger.connected_settings", read)
    assert event_of(restored(found)) == {"why": "failed"}


def test_a_job_that_is_deleted_while_a_sensor_is_deferred_fails_it_at_once(staged: StagedJob) -> None:
    sensor = JobSensor(task_id="wait", job=handle_of(staged.job), deferrable=True, timeout=30)
    found = deferred(sensor)
    store, key = staged.job.store, f"_lockgate/jobs/{staged.job.job_id}/"
    for page in store.pages(key):
        for info in page:
            store.delete(info.key)

    event = event_of(restored(found))

    assert event["why"].startswith("ObjectNotFoundError: ")
    with pytest.raises(ObjectNotFoundError):
        resume(sensor, found, event)


def test_a_broker_that_is_away_is_asked_again_until_the_grace_time(
    staged: StagedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lockgate.workers import gather

    def away(*_: Any) -> Any:
        raise gather.BROKER_ERRORS[0]("away")

    monkeypatch.setattr(gather, "ended_in", away)
    patient = conditions.BatchEnded(batch="b", count=1, queue="commit", grace_s=3600.0)
    hasty = conditions.BatchEnded(batch="b", count=1, queue="commit", grace_s=0.0)
    assert (patient.ask(), hasty.ask()) == (None, conditions.NO_BROKER)
    assert attach(handle_of(staged.job)).phase() is JobPhase.OPEN


def test_a_batch_whose_messages_the_broker_has_lost_resumes_its_task(monkeypatch: pytest.MonkeyPatch) -> None:
    from lockgate.workers import gather

    held = HeldMessages(frozenset({"b-0"}), taken=0, workers=1)
    monkeypatch.setattr(gather, "_answers", lambda: {"worker": [{"name": "commit"}]})
    monkeypatch.setattr(gather, "held_messages", lambda *_: held)
    monkeypatch.setattr(gather, "ended_in", lambda *_: set())
    whole = conditions.BatchEnded(batch="b", count=1, queue="commit", grace_s=0.0)
    lossy = conditions.BatchEnded(batch="b", count=2, queue="commit", grace_s=0.0)
    assert (whole.ask(), lossy.ask()) == (None, conditions.LOST)
