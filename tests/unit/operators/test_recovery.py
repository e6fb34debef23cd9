"""The operators for recovery and sweep try every destination; a job that needs attention fails the task."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.sdk import Variable
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from lockgate import open_job
from lockgate.operators.dag_run.parameters import as_destinations
from lockgate.operators.recovery import JobRecoveryOperator, summary_table
from lockgate.operators.uploads import UploadSweepOperator
from lockgate.storage_core.commit.job_summary import list_jobs
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.commit.recovery.recover import recover_all
from tests.support.airflow.task_run import TaskRun
from tests.support.blobs.job_artefacts import bytes_of, uploaded
from tests.support.commit.crash_harness import die_at
from tests.support.commit.destination import World, write


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCKGATE_DESTINATIONS", raising=False)


def recover(**options: Any) -> Any:
    return JobRecoveryOperator(task_id="recover", **options).execute(TaskRun().context())


def decided(world: World, name: str = "sales") -> None:
    """Leave a job whose driver died after its decision."""
    job = world.open_job(name)
    write(job, "task-0", {"a.txt": b"1"})
    die_at("complete.complete.before", job.commit)


def damaged(world: World, name: str = "broken") -> None:
    """Leave a job whose decision cannot be read."""
    with world.open_job(name) as job:
        world.store.create(f"_lockgate/jobs/{job.job_id}/COMMIT_STARTED", b"?")
        job.close()


def test_recovery_completes_a_job_whose_driver_died_after_its_decision(world: World) -> None:
    decided(world)

    assert recover(destinations=[world.url]) == {"roll forward": 1}

    assert world.visible() == {"a.txt": b"1"}
    [job] = list_jobs(world.url)
    assert job.phase is JobPhase.COMMITTED
    assert recover(destinations=world.url) == {}


def test_recovery_deletes_the_set_up_artefacts_of_a_job_that_it_ends(world: World) -> None:
    world = world.with_journal()
    job = open_job(world.url, "sales", artefacts=uploaded(world), settings=world.settings)
    write(job, "task-0", {"a.txt": b"1"})
    die_at("complete.complete.before", job.commit)
    before = bytes_of(world)

    recover(destinations=[world.url], report_only=True)
    assert bytes_of(world) == before != []

    recover(destinations=[world.url])
    assert bytes_of(world) == []


def test_a_job_is_aborted_for_a_reason_and_its_data_deleted(world: World) -> None:
    job = world.open_job("sales")
    write(job, "task-0", {"a.txt": b"1"})
    of = {"destination": world.url, "job_id": job.job_id, "abort_reason": "wrong day"}

    assert recover(**of, report_only=True) == {"abort": 1}
    assert job.phase() is JobPhase.OPEN

    assert recover(**of) == {"abort": 1}
    assert job.phase() is JobPhase.FAILED
    assert recover(**of) == {"abort": 1}  # a second press changes nothing
    decision = world.attach(job.job_id)._folder.decision()
    assert decision is not None
    assert decision.reason == "wrong day"


def test_an_abort_records_the_user_who_triggered_the_run(world: World) -> None:
    job = world.open_job("sales")
    write(job, "task-0", {"a.txt": b"1"})
    task = JobRecoveryOperator(
        task_id="recover", destination=world.url, job_id=job.job_id, abort_reason="wrong day"
    )

    task.execute(cast("Any", {"dag_run": SimpleNamespace(triggering_user_name="ada")}))

    decision = world.attach(job.job_id)._folder.decision()
    assert decision is not None
    assert decision.reason == "wrong day; by ada"


@pytest.mark.parametrize("report_only", [True, False])
def test_a_decided_job_is_not_aborted(world: World, report_only: bool) -> None:
    decided(world)
    of = {"destination": world.url, "job_id": "sales-g1", "abort_reason": "wrong day"}

    with pytest.raises(AirflowFailException, match=r"sales-g1 .* decided, so it was not aborted; recover"):
        recover(**of, report_only=report_only)

    assert recover(destination=world.url, job_id="sales-g1") == {"roll forward": 1}


def test_a_reason_without_a_job_aborts_nothing(world: World) -> None:
    world.open_job("sales")

    with pytest.raises(AirflowFailException, match="abort_reason without job_id"):
        recover(destinations=[world.url], abort_reason="all of them")


def test_a_form_aborts_no_job_of_a_destination_that_is_not_allowed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = open_job(world.url, "sales")  # in the registry, which finds its destination
    monkeypatch.setenv("LOCKGATE_TRIGGER_DESTINATIONS", '["s3://ours"]')

    with pytest.raises(AirflowFailException, match="is not allowed in a form"):
        recover(job_id=job.job_id, abort_reason="wrong day", restricted=True)

    assert job.phase() is JobPhase.OPEN


def test_an_unreadable_job_fails_the_task_after_the_others_are_settled(world: World) -> None:
    damaged(world)
    decided(world)

    with pytest.raises(AirflowException, match=r"1 jobs need attention .* not changed: broken-g1"):
        recover(destinations=[world.url])

    assert world.visible() == {"a.txt": b"1"}


def test_the_table_has_one_line_per_job_and_aligned_columns(world: World) -> None:
    decided(world, "a-job-with-a-long-name")
    damaged(world)

    lines = summary_table(recover_all(world.url, settings=world.settings, clock=world.clock)).splitlines()

    assert len(lines) == 4
    for heading, cells in {
        "destination": {world.store.url},
        "action": {"roll forward", "touch nothing"},
        "ended": {"committed", "not recovered yet"},
    }.items():
        at = lines[0].index(heading)
        assert {next(c for c in cells if line[at:].startswith(c)) for line in lines[2:]} == cells


def test_an_unreachable_destination_does_not_delay_the_others(world: World, tmp_path: Path) -> None:
    decided(world)
    file = tmp_path / "file"
    file.write_text("no directory")

    with pytest.raises(AirflowException, match=f"1 destinations need attention: {file}"):
        recover(destinations=[str(file), world.url])

    assert world.visible() == {"a.txt": b"1"}


def test_destinations_are_read_from_the_environment_then_from_the_airflow_variable(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    decided(world)
    monkeypatch.setattr(Variable, "get", lambda key, default=None: {"lockgate_destinations": world.url}[key])
    assert recover(report_only=True) == {"roll forward": 1}

    monkeypatch.setenv("LOCKGATE_DESTINATIONS", str(world.root / "elsewhere"))
    assert recover(report_only=True) == {}
    monkeypatch.setenv("LOCKGATE_DESTINATIONS", f"{world.root / 'elsewhere'}, {world.url}/")
    assert recover() == {"roll forward": 1}


def test_without_a_journal_and_a_destination_the_error_names_where_to_configure_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCKGATE_JOURNAL_URL", "none")
    monkeypatch.setattr(Variable, "get", lambda key, default=None: default)

    with pytest.raises(AirflowFailException, match=r"lockgate_destinations.*LOCKGATE_DESTINATIONS"):
        recover()


def test_the_sweep_aborts_an_upload_of_an_ended_job_and_keeps_one_of_an_undecided_job(world: World) -> None:
    with world.open_job("ended") as job:
        job.commit()
        ended = world.store.begin_upload(f"a-{job.short_id}.txt", job.record.token)
    live = world.open_job("live")
    world.store.begin_upload(f"b-{live.short_id}.txt", live.record.token)
    sweep = UploadSweepOperator(task_id="sweep", destinations=[world.url])
    assert ended

    rehearsal = UploadSweepOperator(task_id="sweep", destinations=[world.url], report_only=True)
    for swept in (rehearsal, sweep):
        assert len(world.open_uploads()) == 2
        found = swept.execute(TaskRun().context())[world.url]
        assert {action: figures["uploads"] for action, figures in found.items()} == {"abort": 1, "keep": 1}
        assert set(found["abort"]) == {"uploads", "size", "unmeasured", "monthly_cost_usd"}
    assert world.open_uploads() == [f"b-{live.short_id}.txt"]
    live.abort()


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("s3://a/b, /c d/\nfile:///e", ["s3://a/b", "/c d", "file:///e"]),
        (["s3://a", "s3://a/", " "], ["s3://a"]),
        (None, []),
        ("", []),
    ],
)
def test_destinations_are_a_list_or_a_string_with_commas_and_line_breaks(
    given: Any, found: list[str]
) -> None:
    assert as_destinations(given) == found
