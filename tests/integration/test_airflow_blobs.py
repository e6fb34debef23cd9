"""A real Airflow whose large XCom values and task logs are blobs: API server, scheduler, commands."""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from operators.xcom_rows import MARK, OWNER
from storage_core.blobs import open_blobs
from storage_core.blobs.log_reading import LogReader
from storage_core.blobs.log_versions import Log, LogVersion
from storage_core.journal.configured import close_journals
from storage_core.settings import Settings
from tests.integration.airflow_services import Services, quoted, running_airflow, sure

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_800)]

SWEEP = [sys.executable, "-c", "from operators.commands import xcom_commands; xcom_commands()", "sweep"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("blobs")


@pytest.fixture(scope="module")
def settings(root: Path) -> Settings:
    return Settings(home=root / "home")


@pytest.fixture(scope="module")
def airflow(root: Path) -> Iterator[Services]:
    environment = {
        "LOCKGATE_HOME": str(root / "home"),
        "LOCKGATE_LOG_INTERVAL_S": "1",
        "AIRFLOW__CORE__XCOM_BACKEND": "operators.xcom.BlobXCom",
        "AIRFLOW__LOGGING__LOGGING_CONFIG_CLASS": "operators.task_logs.LOGGING_CONFIG",
    }
    with running_airflow(root, Path(__file__).parent / "blob_dags", environment) as services:
        yield services
    close_journals()


def envelopes(airflow: Services) -> dict[tuple[str, int, str], Any]:
    """Return what the rows keep whose values are blobs, by task, map index and key."""
    with closing(sqlite3.connect(airflow.home.path / "airflow.db")) as database:
        found = database.execute("select task_id, map_index, key, value from xcom").fetchall()
    values = {(task_id, map_index, key): json.loads(value) for task_id, map_index, key, value in found}
    return {row: value[MARK] for row, value in values.items() if isinstance(value, dict) and MARK in value}


def referred(settings: Settings) -> set[str]:
    """Return the keys of the blobs that rows refer to."""
    with open_blobs(settings) as blobs:
        found = blobs.references(job_id="no_job")
    return {one.blob_key for one in found if one.owner.startswith(OWNER)}


def published(settings: Settings, run_id: str, ending: bytes = b"") -> LogVersion | None:
    """Return the newest version of the log of `blob_log`, once it has these bytes."""
    log = Log(name=f"dag_id=blob_log/run_id={run_id}/task_id=talk/attempt=1.log")
    with open_blobs(settings) as blobs:
        reader = LogReader(blobs, log)
        versions = [one for one in reader.versions() if ending in b"".join(reader.read(one))]
    return versions[0] if versions else None


def clear(airflow: Services, run_id: str, task_id: str) -> None:
    body = {
        "dry_run": False,
        "dag_run_id": run_id,
        "task_ids": [task_id],
        "only_failed": False,
        "reset_dag_runs": True,
    }
    airflow.call("POST", "dags/blob_messages/clearTaskInstances", body)


def test_a_log_is_shown_while_its_task_runs_and_when_its_worker_is_gone(
    airflow: Services, settings: Settings, root: Path
) -> None:
    run_id = airflow.trigger("blob_log", {"enough": str(root / "enough")})
    growing = sure(lambda: published(settings, run_id), "nothing was published")

    def shown() -> list[str]:
        return airflow.log("blob_log", run_id, "talk")

    def with_its_version() -> list[str] | None:
        events = shown()
        return events if any("attempt=1.log: version " in event for event in events) else None

    sure(with_its_version, "what was published is not shown")
    sure(lambda: "the first line" in shown() or None, "the log is not shown while its task runs")
    (root / "enough").touch()
    assert airflow.ended_as("blob_log", run_id) == "success"
    final = sure(lambda: published(settings, run_id, b"the last line"), "its end was not published")
    assert final.parts[0] == growing.parts[0]

    shutil.rmtree(airflow.home.path / "logs" / "dag_id=blob_log")
    said = [event for event in shown() if event in {"the first line", "the last line"}]
    assert said == ["the first line", "the last line"]


def test_large_values_are_blobs_until_their_rows_go(
    airflow: Services, settings: Settings, root: Path
) -> None:
    run_id = airflow.trigger("blob_messages", {})
    assert airflow.ended_as("blob_messages", run_id) == "success", airflow.log(
        "blob_messages", run_id, "consume"
    )
    rows = envelopes(airflow)
    assert set(rows) == {
        ("produce", 0, "return_value"),
        ("produce", 1, "return_value"),
        ("split", -1, "return_value"),
        ("split", -1, "large"),
    }
    path = f"dags/blob_messages/dagRuns/{quoted(run_id)}/taskInstances/consume/xcomEntries/return_value"
    assert airflow.call("GET", path)["value"] == [150_000, 100_000, 1]
    assert referred(settings) == {row["blob_key"] for row in rows.values()}

    clear(airflow, run_id, "split")
    assert airflow.ended_as("blob_messages", run_id) == "success"
    again = envelopes(airflow)
    assert again["split", -1, "large"] != rows["split", -1, "large"]
    assert again["produce", 0, "return_value"] == rows["produce", 0, "return_value"]
    assert referred(settings) == {row["blob_key"] for row in again.values()}

    shutil.rmtree(root / "home" / "blobs" / "no_job")
    shutil.rmtree(root / "home" / "blob-cache", ignore_errors=True)
    clear(airflow, run_id, "consume")
    assert airflow.ended_as("blob_messages", run_id) == "failed"

    airflow.command(
        sys.executable,
        "-m",
        "airflow",
        "db",
        "clean",
        "--tables",
        "xcom",
        "--yes",
        "--skip-archive",
        "--clean-before-timestamp",
        "2100-01-01T00:00:00+00:00",
    )
    assert envelopes(airflow) == {}
    assert len(referred(settings)) == 4
    assert "4 too young to tell" in airflow.command(*SWEEP)
    soon = ["env", "LOCKGATE_RETENTION_INTERVAL_S=0.001", *SWEEP]
    assert "4 without their rows" in airflow.command(*soon)
    assert len(referred(settings)) == 4
    assert len(json.loads(airflow.command(*soon, "--yes", "--json"))["gone"]) == 4
    assert referred(settings) == set()
