"""A real Airflow: deferred tasks survive a killed triggerer, and the commit's Asset starts a DAG."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from examples.flights.processes.worker import running_broker, running_worker
from lockgate.storage_core.commit.destination.log import read_manifest
from lockgate.storage_core.commit.job_summary import list_jobs
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.settings import Settings
from tests.support.airflow.services import Services, running_airflow, sure

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_800)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("deferral")


@pytest.fixture(scope="module")
def settings(root: Path) -> Settings:
    return Settings(home=root / "home")


@pytest.fixture(scope="module")
def airflow(root: Path, settings: Settings) -> Iterator[Services]:
    environment = {
        "LOCKGATE_HOME": str(settings.home),
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "120",  # a busy machine; by default 5 s
        "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
        "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "5",
    }
    with (
        running_broker(settings),
        running_airflow(root, Path(__file__).parent / "job_dags", environment) as services,
    ):
        for dag in ("after_files", "job_recovery"):
            services.call("PATCH", f"dags/{dag}?update_mask=is_paused", {"is_paused": False})
        yield services


def in_state(airflow: Services, run_id: str, task_id: str, wanted: str) -> bool | None:
    return True if airflow.state("job_files", run_id, task_id) == wanted else None


def events_of(airflow: Services, job_id: str) -> list[Any]:
    """Return the events of a job in Airflow's database: their Asset and who emitted them."""
    with closing(sqlite3.connect(airflow.home.path / "airflow.db")) as database:
        return database.execute(
            "select asset.name, asset_event.source_dag_id from asset_event join asset on asset.id = asset_id "
            "where json_extract(asset_event.extra, '$.job_id') = ?",
            (job_id,),
        ).fetchall()


def started_by(airflow: Services, job_id: str) -> bool | None:
    """Return whether a run of the DAG that the Asset schedules has read an event of this job."""
    with closing(sqlite3.connect(airflow.home.path / "airflow.db")) as database:
        values = database.execute("select value from xcom where dag_id = 'after_files'").fetchall()
    return True if any(job_id in str(value) for (value,) in values) else None


def test_a_killed_triggerer_loses_no_deferred_task_and_nothing_is_sent_twice(
    airflow: Services, settings: Settings, root: Path
) -> None:
    destination = str(root / "lake" / "deferred")
    with airflow.process("triggerer", "triggerer") as triggerer:
        run_id = airflow.trigger("job_files", {"destination": destination})
        sure(lambda: in_state(airflow, run_id, "tasks", "deferred"), "the task was not deferred")
        os.killpg(triggerer.pid, signal.SIGKILL)

    with (
        running_worker(root / "worker.log", {"LOCKGATE_HOME": str(settings.home)}),
        airflow.process("triggerer-2", "triggerer"),
    ):
        assert airflow.ended_as("job_files", run_id) == "success"

    assert read_manifest(destination, settings=settings).size == 3
    [job] = list_jobs(destination, settings=settings)
    assert job.phase is JobPhase.COMMITTED
    ran = (root / "worker.log").read_text().count("lockgate.commit_task")
    assert ran > 0
    assert "sent as batch" in " ".join(airflow.log("job_files", run_id, "tasks"))
    assert events_of(airflow, job.job_id) == [("files", "job_files")]
    sure(lambda: started_by(airflow, job.job_id), "the Asset started no run")
