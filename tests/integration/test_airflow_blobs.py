"""Tests of blobs in a real Airflow: large XCom values and task logs, a triggerer and Celery workers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from examples.flights.processes.worker import running_broker
from lockgate.operators.xcom.envelope import MARK, XComRow
from lockgate.storage_core.blobs.logs.log_reader import LogReader
from lockgate.storage_core.blobs.logs.log_versions import Log, LogVersion
from lockgate.storage_core.blobs.open_blobs import open_blobs
from lockgate.storage_core.settings import Settings, load_settings
from lockgate.storage_core.stores import open_store
from lockgate.workers.broker.embedded_broker import broker_url
from tests.support.airflow.services import Services, quoted, running_airflow, sure
from tests.support.processes.blob_server import server_process
from tests.support.s3 import real_server

pytestmark = [pytest.mark.soak, pytest.mark.integration, pytest.mark.timeout(1_800)]

SCOPE = "this-one"
SWEEP = [
    sys.executable,
    "-c",
    "from lockgate.operators.commands import xcom_commands; xcom_commands()",
    "sweep",
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("blobs")


@pytest.fixture(scope="module")
def blob_store_url(root: Path) -> Iterator[str]:
    """Yield a place on the S3 server, which forked processes of both executors use; without one a folder."""
    if "LOCKGATE_TEST_S3_URL" not in os.environ:
        yield (root / "ha").as_uri()
        return
    with pytest.MonkeyPatch.context() as patch:
        for name, value in real_server.environment().items():
            patch.setenv(name, value)
        yield real_server.new_url()


@pytest.fixture(scope="module")
def settings(root: Path, blob_store_url: str) -> Settings:
    return load_settings(
        home=root / "home",
        journal_url=f"sqlite:///{root}/journal.db",
        blob_dir=root / "blobs",
        blob_store_url=blob_store_url,
        airflow_scope=SCOPE,
    )


@pytest.fixture(scope="module")
def airflow(root: Path, settings: Settings) -> Iterator[Services]:
    """Yield an Airflow with the local executor, whose tasks open the blobs themselves."""
    environment = {
        "LOCKGATE_HOME": str(settings.home),
        "LOCKGATE_JOURNAL_URL": str(settings.journal_url),
        "LOCKGATE_BLOB_DIR": str(settings.blob_dir),
        "LOCKGATE_BLOB_STORE_URL": str(settings.blob_store_url),
        "LOCKGATE_AIRFLOW_SCOPE": SCOPE,
        "LOCKGATE_LOG_INTERVAL_S": "1",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor,CeleryExecutor",
        "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
        "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "5",
        "AIRFLOW__CORE__XCOM_BACKEND": "lockgate.operators.xcom.BlobXCom",
        "AIRFLOW__LOGGING__LOGGING_CONFIG_CLASS": "lockgate.operators.task_logs.LOGGING_CONFIG",
    }
    with running_broker(settings):
        environment["AIRFLOW__CELERY__BROKER_URL"] = broker_url(settings)
        environment["AIRFLOW__CELERY__RESULT_BACKEND"] = broker_url(settings)
        with running_airflow(root, Path(__file__).parent / "blob_dags", environment) as services:
            yield services


def envelopes(airflow: Services, dag_id: str) -> dict[tuple[str, int, str], Any]:
    """Return the envelopes in the rows of a DAG by task, map index and key."""
    found = query(airflow, "select task_id, map_index, key, value from xcom where dag_id = ?", dag_id)
    values = {(task_id, map_index, key): json.loads(value) for task_id, map_index, key, value in found}
    return {row: value[MARK] for row, value in values.items() if isinstance(value, dict) and MARK in value}


def query(airflow: Services, statement: str, *values: str) -> list[Any]:
    """Query Airflow's database."""
    with closing(sqlite3.connect(airflow.home.path / "airflow.db")) as database:
        return database.execute(statement, values).fetchall()


def referred(settings: Settings, dag_id: str, scope: str = SCOPE) -> set[str]:
    """Return the keys of the blobs that the rows of a DAG reference."""
    with open_blobs(settings) as blobs:
        found = blobs.references(job_id="no_job")
    rows = [(XComRow.of_owner(one.owner), one.blob_key) for one in found]
    return {key for row, key in rows if row is not None and (row.scope, row.dag_id) == (scope, dag_id)}


def published(settings: Settings, run_id: str, ending: bytes = b"") -> LogVersion | None:
    """Wait until the log of `blob_log` has these bytes; return its newest version."""
    log = Log(name=f"{SCOPE}/dag_id=blob_log/run_id={run_id}/task_id=talk/attempt=1.log")
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


def test_a_log_is_shown_while_its_task_runs_and_after_its_worker_is_gone(
    airflow: Services, settings: Settings, root: Path
) -> None:
    run_id = airflow.trigger("blob_log", {"enough": str(root / "enough")})
    growing = sure(lambda: published(settings, run_id), "nothing was published")

    def shown() -> list[str]:
        return airflow.log("blob_log", run_id, "talk")

    def with_its_version() -> list[str] | None:
        events = shown()
        return events if any("attempt=1.log: version " in event for event in events) else None

    def whole() -> LogVersion | None:
        version = published(settings, run_id, b"the last line")
        return version if version is not None and not version.growing else None

    sure(with_its_version, "what was published is not shown")
    sure(lambda: "the first line" in shown() or None, "the log is not shown while its task runs")
    (root / "enough").touch()
    assert airflow.ended_as("blob_log", run_id) == "success"
    final = sure(whole, "its end was not published")
    assert final.parts[0] == growing.parts[0]

    shutil.rmtree(airflow.home.path / "logs" / "dag_id=blob_log")
    events = [event for event in shown() if event in {"the first line", "the last line"} or "***" in event]
    assert events == ["the first line", "the last line"]


def test_large_values_are_blobs_until_their_rows_are_deleted(
    airflow: Services, settings: Settings, root: Path, blob_store_url: str
) -> None:
    run_id = airflow.trigger("blob_messages", {})
    assert airflow.ended_as("blob_messages", run_id) == "success", airflow.log(
        "blob_messages", run_id, "consume"
    )
    rows = envelopes(airflow, "blob_messages")
    assert set(rows) == {
        ("produce", 0, "return_value"),
        ("produce", 1, "return_value"),
        ("split", -1, "return_value"),
        ("split", -1, "large"),
    }
    path = f"dags/blob_messages/dagRuns/{quoted(run_id)}/taskInstances/consume/xcomEntries/return_value"
    assert airflow.call("GET", path)["value"] == [150_000, 100_000, 1]
    assert referred(settings, "blob_messages") == {row["blob_key"] for row in rows.values()}
    with open_blobs(settings) as blobs:  # of another Airflow, and without a scope
        for row in rows.values():
            known = XComRow.of_owner(row["owner"])
            assert known is not None
            for scope in ("that-one", ""):
                blobs.put(b"theirs", owners=[structs.replace(known, scope=scope).owner])

    clear(airflow, run_id, "split")
    assert airflow.ended_as("blob_messages", run_id) == "success"
    again = envelopes(airflow, "blob_messages")
    assert again["split", -1, "large"] != rows["split", -1, "large"]
    assert again["produce", 0, "return_value"] == rows["produce", 0, "return_value"]
    assert referred(settings, "blob_messages") == {row["blob_key"] for row in again.values()}

    shutil.rmtree(root / "blobs" / "no_job")
    copies = open_store(blob_store_url, settings)
    assert copies.delete_many([info.key for page in copies.pages("no_job/") for info in page]) == []
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
    assert envelopes(airflow, "blob_messages") == {}
    assert len(referred(settings, "blob_messages")) == 4
    assert "4 too young to check" in airflow.command(*SWEEP)
    soon = ["env", "LOCKGATE_RETENTION_INTERVAL_S=0.001", *SWEEP]
    assert "4 without a row" in airflow.command(*soon)
    assert len(referred(settings, "blob_messages")) == 4
    assert len(json.loads(airflow.command(*soon, "--yes", "--json"))["gone"]) == 4
    assert referred(settings, "blob_messages") == set()
    assert [len(referred(settings, "blob_messages", scope)) for scope in ("that-one", "")] == [4, 4]


def test_a_deferred_task_resumes_once_after_its_triggerer_was_killed(
    airflow: Services, settings: Settings, root: Path
) -> None:
    awaited, resumed = root / "awaited", root / "resumed"
    run_id = airflow.trigger("blob_deferring", {"awaited": str(awaited), "resumed": str(resumed)})
    with airflow.process("triggerer-1", "triggerer", "--skip-serve-logs") as triggerer:
        assert sure(lambda: is_deferred(airflow, run_id), "no triggerer took the trigger")
        before = envelopes(airflow, "blob_deferring")
        os.killpg(triggerer.pid, signal.SIGKILL)
    awaited.touch()
    with airflow.process("triggerer-2", "triggerer", "--skip-serve-logs"):
        assert airflow.ended_as("blob_deferring", run_id) == "success"
    assert resumed.read_text() == "once\n"

    rows = envelopes(airflow, "blob_deferring")
    assert set(before) == {("wait", -1, "state")}
    assert set(rows) == {("wait", -1, "state"), ("wait", -1, "return_value")}
    assert rows["wait", -1, "state"] != before["wait", -1, "state"]
    path = f"dags/blob_deferring/dagRuns/{quoted(run_id)}/taskInstances/check/xcomEntries/return_value"
    assert airflow.call("GET", path)["value"] == ["resumed", 100_000]

    left = {before["wait", -1, "state"]["blob_key"]}  # Airflow does not notify its backend of this overwrite
    kept = {row["blob_key"] for row in rows.values()}
    assert referred(settings, "blob_deferring") == kept | left
    airflow.command("env", "LOCKGATE_RETENTION_INTERVAL_S=0.001", *SWEEP, "--yes")
    assert referred(settings, "blob_deferring") == kept

    shutil.rmtree(airflow.home.path / "logs" / "dag_id=blob_deferring")
    shown = airflow.log("blob_deferring", run_id, "wait")
    assert [event for event in shown if event in {"before it defers", "after it resumed"}] == [
        "before it defers",
        "after it resumed",
    ]
    assert any(str(awaited) in event for event in shown), "the trigger's own log is not shown"


def is_deferred(airflow: Services, run_id: str) -> bool | None:
    """Return True if the task is deferred, False if it has failed, and None otherwise."""
    state = airflow.state("blob_deferring", run_id, "wait")
    if state == "deferred" and query(airflow, "select id from trigger where triggerer_id is not null"):
        return True
    return False if state == "failed" else None


def test_a_value_pushed_by_one_celery_worker_is_pulled_by_another(airflow: Services, root: Path) -> None:
    options = {"LOCKGATE_HOME": str(root / "server")}
    with server_process(root, options) as server, ExitStack() as stack:
        for name in ("near", "far"):
            theirs = {
                "LOCKGATE_HOME": str(root / name),
                "LOCKGATE_BLOB_DIR": str(root / name / "nothing"),
                "LOCKGATE_BLOB_STORE_URL": (root / name / "nothing").as_uri(),
                "LOCKGATE_JOURNAL_URL": "none",
                "LOCKGATE_BLOB_SERVER_URL": server.url,
            }
            worker = ["celery", "worker", "--queues", name, "--concurrency", "1", "--celery-hostname", name]
            stack.enter_context(
                airflow.process(name, *worker, "--skip-serve-logs", "--without-gossip", environment=theirs)
            )
        run_id = airflow.trigger("blob_workers", {})
        assert airflow.ended_as("blob_workers", run_id) == "success"
    path = f"dags/blob_workers/dagRuns/{quoted(run_id)}/taskInstances/pull/xcomEntries/return_value"
    assert airflow.call("GET", path)["value"] == [str(root / "near"), str(root / "far"), 100_000]
    (row,) = envelopes(airflow, "blob_workers").values()
    assert (root / "blobs" / "no_job" / row["blob_key"]).is_file()
    assert (root / "far" / "blob-cache" / "blobs" / "no_job" / row["blob_key"]).is_file()
    assert not (root / "far" / "nothing").exists()
