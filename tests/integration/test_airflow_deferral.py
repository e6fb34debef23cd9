"""A real Airflow: deferred tasks that are cleared or lose their triggerer, and a killed commit's event."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import psycopg
import pytest

from examples.flights.processes.worker import running_broker, running_worker
from lockgate.storage_core.commit.destination.manifest import read_manifest
from lockgate.storage_core.commit.job_summary import list_jobs
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.settings import Settings, load_settings, settings_in_effect
from lockgate.storage_core.stores import open_store
from lockgate.workers.celery_app import COMMIT_QUEUE, app
from tests.support.airflow.services import Services, quoted, running_airflow, sure
from tests.support.postgres import Server

pytestmark = [
    pytest.mark.soak,
    pytest.mark.integration,
    pytest.mark.requires("postgres"),
    pytest.mark.timeout(1_800),
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("deferral")


@pytest.fixture(scope="module")
def settings(root: Path) -> Settings:
    return load_settings(home=root / "home")


@pytest.fixture(scope="module")
def airflow(root: Path, settings: Settings, postgres: Server) -> Iterator[Services]:
    environment = {
        "LOCKGATE_HOME": str(settings.home),
        "LOCKGATE_TRIGGER_DESTINATIONS": json.dumps([str(root / "lake")]),  # the form of `job_recovery`
        "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "120",  # a busy machine; by default 5 s
        "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
        "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "5",
    }
    with (
        running_broker(settings),
        running_airflow(
            root,
            Path(__file__).parent / "job_dags",
            environment,
            database=postgres.new_database("airflow_deferral"),
        ) as services,
    ):
        for dag in ("after_files", "job_recovery"):
            services.call("PATCH", f"dags/{dag}?update_mask=is_paused", {"is_paused": False})
        yield services


@pytest.fixture(scope="module")
def worker(airflow: Services, settings: Settings, root: Path) -> Iterator[Path]:
    """Run a worker for all tests; yield its log."""
    log = root / "worker.log"
    with running_worker(log, {"LOCKGATE_HOME": str(settings.home)}):
        yield log


@pytest.fixture(scope="module")
def control(worker: Path, settings: Settings) -> Any:
    """Return Celery's remote control of the worker."""
    with settings_in_effect(settings):
        return app.asker().control


@pytest.fixture(scope="module")
def triggerer(airflow: Services) -> Iterator[None]:
    """Run a triggerer for the tests that kill none."""
    with airflow.process("triggerer", "triggerer"):
        yield


@contextmanager
def paused(control: Any) -> Iterator[None]:
    """Let the worker take no message of the queue `commit` during the block."""
    sure(lambda: control.cancel_consumer(COMMIT_QUEUE, reply=True) or None, "the worker did not begin")
    yield
    assert control.add_consumer(COMMIT_QUEUE, reply=True)


def in_state(airflow: Services, run_id: str, task_id: str, wanted: str) -> bool | None:
    return True if airflow.state("job_files", run_id, task_id) == wanted else None


def events_of(airflow: Services, job_id: str) -> list[Any]:
    """Return the events of a job in Airflow's database: their Asset and who emitted them."""
    with psycopg.connect(airflow.database) as database:
        return database.execute(
            "select asset.name, asset_event.source_dag_id from asset_event join asset on asset.id = asset_id "
            "where asset_event.extra::json ->> 'job_id' = %s",
            (job_id,),
        ).fetchall()


def started_by(airflow: Services, job_id: str) -> bool | None:
    """Return whether a run of the DAG that the Asset schedules has read an event of this job."""
    with psycopg.connect(airflow.database) as database:
        values = database.execute("select value from xcom where dag_id = 'after_files'").fetchall()
    return True if any(job_id in str(value) for (value,) in values) else None


def press(airflow: Services, action: str, wanted: dict[str, str]) -> str:
    """Press the button of an action on a page; return the id of the DAG run that it starts."""
    dry = airflow.lockgate("POST", f"actions/{action}", wanted)
    assert (dry["dry_run"], dry["href"]) == (True, None)
    started = airflow.lockgate("POST", f"actions/{action}", {**wanted, "dry_run": False})
    return unquote(started["href"].rpartition("/")[2])


def triggers(airflow: Services, *, running: bool = False) -> int:
    """Return the number of triggers in Airflow's database."""
    of = "where triggerer_id is not null" if running else ""
    with psycopg.connect(airflow.database) as database:
        return len(database.execute(f"select id from trigger {of}".encode()).fetchall())


def test_airflow_loads_the_plugin_and_its_api_answers(airflow: Services) -> None:
    (plugin,) = [one for one in airflow.call("GET", "plugins")["plugins"] if one["name"] == "lockgate"]
    assert airflow.call("GET", "plugins/importErrors")["import_errors"] == []
    assert [app["url_prefix"] for app in plugin["fastapi_apps"]] == ["/lockgate"]

    assert airflow.lockgate("GET", "openapi.json")["info"]["title"] == "Lockgate"


def test_a_killed_triggerer_loses_no_deferred_task_and_nothing_is_sent_twice(
    *,
    airflow: Services,
    settings: Settings,
    root: Path,
    worker: Path,
    control: Any,
    request: pytest.FixtureRequest,
) -> None:
    destination = str(root / "lake" / "deferred")
    with paused(control), airflow.process("killed-triggerer", "triggerer") as killed:
        run_id = airflow.trigger("job_files", {"destination": destination})
        sure(lambda: in_state(airflow, run_id, "tasks", "deferred"), "the task was not deferred")
        os.killpg(killed.pid, signal.SIGKILL)
    request.getfixturevalue("triggerer")
    assert airflow.ended_as("job_files", run_id) == "success"

    assert read_manifest(destination, settings=settings).size == 3
    [job] = list_jobs(destination, settings=settings)
    assert job.phase is JobPhase.COMMITTED
    assert len(re.findall(r"Task lockgate\.commit_task\S+ received", worker.read_text())) == 3
    assert "sent as batch" in " ".join(airflow.log("job_files", run_id, "tasks"))
    assert events_of(airflow, job.job_id) == [("files", "job_files")]
    sure(lambda: started_by(airflow, job.job_id), "the Asset started no run")


def test_a_deferred_task_that_is_cleared_leaves_nothing_running_and_its_job_commits_once(
    *, airflow: Services, settings: Settings, root: Path, worker: Path, control: Any, triggerer: None
) -> None:
    destination, before = str(root / "lake" / "cleared"), len(worker.read_text())
    with paused(control):
        run_id = airflow.trigger("job_files", {"destination": destination})
        sure(lambda: in_state(airflow, run_id, "tasks", "deferred"), "the task was not deferred")
        sure(lambda: triggers(airflow, running=True) == 1 or None, "the triggerer did not begin")
        clear = {"dag_run_id": run_id, "task_ids": ["tasks"], "dry_run": False, "only_failed": False}
        airflow.call("POST", "dags/job_files/clearTaskInstances", clear)
        sure(lambda: any((control.inspect().revoked() or {}).values()) or None, "nothing was withdrawn")
    assert airflow.ended_as("job_files", run_id) == "success"

    assert "sent as batch" in " ".join(airflow.log("job_files", run_id, "tasks", 2))
    lines = worker.read_text()[before:]
    assert lines.count("Discarding revoked task: lockgate.commit_task") == 3
    assert len(re.findall(r"Task lockgate\.commit_task\S+ succeeded", lines)) == 3
    assert triggers(airflow) == 0
    assert read_manifest(destination, settings=settings).size == 3
    [job] = list_jobs(destination, settings=settings)
    assert job.phase is JobPhase.COMMITTED
    assert events_of(airflow, job.job_id) == [("files", "job_files")]


def test_a_commit_killed_after_its_decision_says_so_and_recovery_emits_its_event_once(
    airflow: Services, settings: Settings, root: Path, worker: Path, triggerer: None
) -> None:
    destination = str(root / "lake" / "killed")
    conf = {"destination": destination, "complete_by": "threads", "kill": True}
    run_id = airflow.trigger("job_files", conf)
    airflow.ended_as("job_files", run_id)
    assert airflow.state("job_files", run_id, "commit") == "failed"
    [job] = list_jobs(destination, settings=settings)
    log = " ".join(airflow.log("job_files", run_id, "commit"))
    assert f"job {job.job_id} at file://{destination} is decided" in log
    assert "the DAG job_recovery finishes the job" in log
    assert "its commit was interrupted after the decision" in " ".join(
        airflow.log("job_files", run_id, "abort")
    )
    assert events_of(airflow, job.job_id) == []

    links = airflow.call("GET", f"dags/job_files/dagRuns/{quoted(run_id)}/taskInstances/commit/links")
    assert links["extra_links"]["Lockgate job"].endswith(f"job={quoted(job.job_id)}")

    wanted = {"destination": f"file://{destination}", "job_id": job.job_id}
    for number in range(2):
        if number == 0:
            recovered = press(airflow, "recover", wanted)
        else:
            recovered = airflow.trigger("job_recovery", wanted)
        assert airflow.ended_as("job_recovery", recovered) == "success"

    [job] = list_jobs(destination, settings=settings)
    assert job.phase is JobPhase.COMMITTED
    assert events_of(airflow, job.job_id) == [("files", "job_recovery")]
    sure(lambda: started_by(airflow, job.job_id), "the Asset started no run")
    assert [page for page in open_store(destination, settings).pages(layout.ASSET_EVENTS) if page] == []


def test_the_form_of_a_connection_has_its_fields_and_airflow_hides_its_passwords(airflow: Services) -> None:
    [meta] = [one for one in airflow.ui("connections/hook_meta") if one["connection_type"] == "lockgate"]
    fields = meta["extra_fields"]
    assert {name: field["schema"]["title"] for name, field in fields.items()} == {
        "journal_url": "Journal",
        "broker_url": "Broker",
        "broker_password": "Password of the broker",
        "blob_server_url": "Blob server",
        "aws_conn_id": "AWS connection for S3",
    }
    hidden = [name for name, field in fields.items() if field["schema"].get("format") == "password"]
    assert hidden == ["broker_password"]
    assert [field["value"] for field in fields.values() if field["value"]] == []
    standard = {name: field for name, field in meta["standard_fields"].items() if field}
    assert [name for name, field in standard.items() if not field["hidden"]] == ["password"]
    assert standard["password"]["title"] == "Password of the journal"

    extra = {"journal_url": "postgresql://jobs@db/lockgate", "broker_password": "hush-broker"}
    form = {"connection_id": "typed", "conn_type": "lockgate", "password": "hush-journal"}
    airflow.call("POST", "connections", {**form, "extra": json.dumps(extra)})
    shown = airflow.call("GET", "connections/typed")

    assert (shown["conn_type"], json.loads(shown["extra"])["journal_url"]) == (
        "lockgate",
        extra["journal_url"],
    )
    assert "hush" not in json.dumps(shown)
