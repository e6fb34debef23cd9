"""Every committed job gets its Asset events, once, also if its commit task was killed after the decision."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG, Asset, AssetAlias
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.execution_time import task_runner

from lockgate.operators import (
    JobAbortOperator,
    JobAnnounceOperator,
    JobCommitOperator,
    JobRecoveryOperator,
    JobSetupOperator,
)
from lockgate.operators.dag_run.job_handle import attach
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.expected_tasks import ExpectedTask
from lockgate.storage_core.errors import ObjectNotFoundError
from lockgate.storage_core.ids import TaskId
from tests.support.airflow.asset_events import AssetEvents
from tests.support.airflow.task_run import TaskRun
from tests.support.commit.crash_harness import die_at
from tests.support.commit.destination import World

SALES, ANY = Asset("sales", "s3://lake/sales"), AssetAlias("any")
COMMIT = ("sales", TaskRun.run_id, "commit")


@pytest.fixture(autouse=True)
def airflow(world: World, monkeypatch: pytest.MonkeyPatch) -> Any:
    events = AssetEvents()
    monkeypatch.delenv("LOCKGATE_DESTINATIONS", raising=False)
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", events, raising=False)
    return events


def written(world: World, **options: Any) -> Any:
    """Return the handle of a job whose only task has committed."""
    setup = JobSetupOperator(task_id="setup", destination=world.url, **options)
    handle = setup.execute(TaskRun().context())
    with attach(handle).attempt("task-0") as attempt, attempt.open("a.txt") as file:
        file.write(b"1")
    return handle


def commit(handle: Any, *outlets: Any) -> JobCommitOperator:
    return JobCommitOperator(task_id="commit", job=handle, outlets=list(outlets))


def killed(airflow: AssetEvents, handle: Any, *outlets: Any, at: str = "complete.complete.before") -> None:
    die_at(at, lambda: airflow.run(commit(handle, *outlets)))


def recover(airflow: AssetEvents, **options: Any) -> None:
    airflow.run(JobRecoveryOperator(task_id="recover", recover_by="threads", **options))


def tell(airflow: AssetEvents, **options: Any) -> list[str]:
    return list(airflow.run(JobAnnounceOperator(task_id="announce", **options)))


def pending(world: World) -> list[str]:
    return [info.key for page in world.store.pages(layout.ASSET_EVENTS) for info in page]


@pytest.mark.parametrize("outlet", [SALES, ANY, Asset("only a name")])
def test_a_job_that_recovery_commits_gets_the_event_of_its_commit_task_once(
    world: World, airflow: AssetEvents, outlet: Any
) -> None:
    handle = written(world)
    killed(airflow, handle, outlet)
    recover(airflow)
    assert airflow.events == []

    assert tell(airflow) == [handle["job_id"]]
    assert tell(airflow) == []

    receipt = attach(handle).receipt
    assert receipt is not None
    [(asset, extra)] = airflow.events
    expected = Asset(name=handle["destination"], uri=handle["destination"]) if outlet is ANY else outlet
    assert (asset.name, asset.uri) == (expected.name, expected.uri)
    assert extra["job_id"] == handle["job_id"]
    assert (extra["destination"], extra["turn"], extra["files"]) == (handle["destination"], 1, 1)
    assert airflow.aliases == {"lockgate_recovered"} | ({"any"} if outlet is ANY else set())
    assert pending(world) == []


def test_the_event_has_the_same_extra_whether_the_commit_task_or_recovery_emits_it(
    world: World, airflow: AssetEvents
) -> None:
    handle = written(world)
    killed(airflow, handle, SALES)
    recover(airflow)
    tell(airflow)
    [(_, recovered)] = airflow.events

    airflow.events.clear()
    airflow.run(commit(handle, SALES))

    assert [extra for _, extra in airflow.events] == [recovered]


@pytest.mark.parametrize("point", ["success.create.before", "end.create.after"])
def test_a_commit_task_that_is_killed_after_the_publication_loses_no_event(
    world: World, airflow: AssetEvents, point: str
) -> None:
    handle = written(world)
    killed(airflow, handle, SALES, at=point)
    recover(airflow)
    tell(airflow)
    assert [extra["job_id"] for _, extra in airflow.events] == [handle["job_id"]]


def test_a_commit_task_that_dies_after_airflow_stored_its_event_is_not_emitted_again(
    world: World, airflow: AssetEvents
) -> None:
    handle = written(world)
    airflow.run(commit(handle, SALES), dies=True)
    assert len(pending(world)) == 1

    assert tell(airflow) == []

    assert (len(airflow.events), pending(world)) == (1, [])


@pytest.mark.parametrize("state", ["running", "up_for_retry", None])
def test_a_commit_task_that_may_still_emit_is_left_to_it(
    world: World, airflow: AssetEvents, state: str | None
) -> None:
    handle = written(world)
    killed(airflow, handle, SALES)
    recover(airflow)
    airflow.states[COMMIT] = state

    assert tell(airflow) == []
    airflow.run(commit(handle, SALES))
    assert tell(airflow) == []

    assert (len(airflow.events), pending(world)) == (1, [])


def test_a_retry_after_recovery_has_emitted_the_event_does_not_emit_it_again(
    world: World, airflow: AssetEvents
) -> None:
    handle = written(world)
    killed(airflow, handle, SALES, ANY)
    recover(airflow)
    tell(airflow)
    assert len(airflow.events) == 2

    assert airflow.run(commit(handle, SALES, ANY))["files"] == 1

    assert len(airflow.events) == 2


def test_an_announcement_that_dies_is_made_by_the_next_run(world: World, airflow: AssetEvents) -> None:
    handle = written(world)
    killed(airflow, handle, SALES)
    recover(airflow)
    lost = AssetEvents(states=dict(airflow.states))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_runner, "SUPERVISOR_COMMS", lost, raising=False)
        assert tell(lost) == [handle["job_id"]]

    assert tell(airflow) == [handle["job_id"]]


def test_a_job_that_is_aborted_has_no_event_to_emit(world: World, airflow: AssetEvents) -> None:
    handle = written(world)
    killed(airflow, handle, SALES, at="decide.create.before")
    assert len(pending(world)) == 1

    assert airflow.run(JobAbortOperator(task_id="abort", job=handle)) == "failed"

    assert (pending(world), tell(airflow), airflow.events) == ([], [], [])


def test_a_job_that_recovery_aborts_has_no_event_to_emit(world: World, airflow: AssetEvents) -> None:
    handle = written(world)
    killed(airflow, handle, SALES, at="decide.create.before")
    attach(handle).suspend(0)
    recover(airflow)
    assert (tell(airflow), airflow.events, pending(world)) == ([], [], [])


def test_a_job_that_recovery_resumes_before_its_commit_task_began_gets_its_event(
    world: World, airflow: AssetEvents
) -> None:
    with DAG("sales"):
        setup = JobSetupOperator(
            task_id="setup", destination=world.url, on_lapse="resume", suspend_timeout_s=0
        )
        later = JobCommitOperator(task_id="commit", job=setup.output, outlets=[SALES])
        setup >> later
    handle = airflow.run(setup)
    attach(handle).expect([ExpectedTask(task_id=TaskId("task-0"))])
    with attach(handle).attempt("task-0") as attempt, attempt.open("a.txt") as file:
        file.write(b"1")
    airflow.states[COMMIT] = "upstream_failed"

    recover(airflow)
    tell(airflow)

    assert [extra["job_id"] for _, extra in airflow.events] == [handle["job_id"]]


def test_a_destination_that_cannot_be_read_does_not_keep_back_the_events_of_others(
    world: World, airflow: AssetEvents, capsys: pytest.CaptureFixture[str]
) -> None:
    handle = written(world)
    killed(airflow, handle, SALES)
    recover(airflow)
    unreadable = world.root / "file"
    unreadable.write_text("I am no folder")

    assert tell(airflow, destinations=[str(unreadable), world.url]) == [handle["job_id"]]
    assert f"{unreadable}: Asset events not read" in capsys.readouterr().out


def test_a_damaged_record_fails_the_task_only_when_no_event_is_left_to_emit(
    world: World, airflow: AssetEvents
) -> None:
    handle = written(world)
    killed(airflow, handle, SALES)
    recover(airflow)
    world.store.create(f"{layout.ASSET_EVENTS}a-damaged.json", b"?")

    assert tell(airflow) == [handle["job_id"]]
    with pytest.raises(AirflowFailException, match=r"1 records of Asset events .*a-damaged"):
        tell(airflow)

    assert [extra["job_id"] for _, extra in airflow.events] == [handle["job_id"]]


def test_an_asset_that_airflow_no_longer_has_does_not_keep_back_the_events_of_others(
    world: World, airflow: AssetEvents
) -> None:
    handles = [written(world, write_name=name) for name in ("a", "b")]
    killed(airflow, handles[0], Asset.ref(name="gone"))
    recover(airflow)
    killed(airflow, handles[1], SALES)
    recover(airflow)
    airflow.inactive.add("gone")

    assert tell(airflow) == [handles[1]["job_id"]]
    with pytest.raises(AirflowFailException, match="ASSET_NOT_FOUND"):
        tell(airflow)

    assert [extra["job_id"] for _, extra in airflow.events] == [handles[1]["job_id"]]


def test_a_record_that_is_deleted_while_it_is_read_does_not_keep_back_the_others(
    world: World, airflow: AssetEvents, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = written(world)
    killed(airflow, handle, SALES)
    recover(airflow)
    keys = [f"{layout.ASSET_EVENTS}deleted.json", *pending(world)]
    monkeypatch.setattr("lockgate.operators.announce.pending_keys", lambda *_: keys)
    assert tell(airflow) == [handle["job_id"]]


def test_a_dry_run_emits_nothing_and_names_the_job(world: World, airflow: AssetEvents) -> None:
    handle = written(world)
    killed(airflow, handle, SALES)
    recover(airflow)
    assert tell(airflow, report_only=True) == [handle["job_id"]]
    assert (airflow.events, len(pending(world))) == ([], 1)


def test_one_job_is_recovered_and_told_by_its_id(world: World, airflow: AssetEvents) -> None:
    handle = written(world)
    killed(airflow, handle, SALES)
    with pytest.raises(ObjectNotFoundError, match="knows no job 'other-g1'"):
        recover(airflow, job_id="other-g1")

    recover(airflow, job_id=handle["job_id"])
    assert tell(airflow, job_id="other-g1") == []
    assert tell(airflow, job_id=handle["job_id"], destination=world.url) == [handle["job_id"]]


def test_the_log_of_a_commit_task_says_after_the_decision_what_happens_if_it_is_killed(
    world: World, airflow: AssetEvents, capsys: pytest.CaptureFixture[str]
) -> None:
    handle = written(world)
    killed(airflow, handle, SALES)
    log = capsys.readouterr().out
    assert f"job {handle['job_id']} at {handle['destination']} is decided" in log
    assert "the DAG job_recovery finishes the job" in log

    airflow.run(JobAbortOperator(task_id="abort", job=handle))
    assert "its commit was interrupted after the decision" in capsys.readouterr().out
