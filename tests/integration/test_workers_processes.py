"""Tests of real worker processes with the embedded Redis."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.commit.recovery.decision_table import RecoveryAction
from lockgate.storage_core.commit.recovery.recover import JobAt
from lockgate.storage_core.errors import ConflictError
from lockgate.storage_core.settings import Settings
from lockgate.workers.broker.embedded_broker import find_broker
from lockgate.workers.celery_app import app
from lockgate.workers.commands import register
from lockgate.workers.dispatch import commit_tasks, complete_by_workers, recover_by_workers, sweep_blobs
from tests.support.s3 import real_server
from tests.support.workers.celery_worker import (
    StagedJob,
    WorkerProcess,
    connect_again,
    embedded_broker,
    wait_until,
    worker_process,
)

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    with embedded_broker(tmp_path_factory.mktemp("home")) as settings:
        yield settings


@pytest.fixture(scope="module", autouse=True)
def s3_server() -> Iterator[None]:
    """Let this process and the workers find the S3 server, if there is one."""
    with pytest.MonkeyPatch.context() as patch:
        if "LOCKGATE_TEST_S3_URL" in os.environ:
            for name, value in real_server.environment().items():
                patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def worker(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    with worker_process(tmp_path_factory.mktemp("worker") / "log") as worker:
        yield worker


@pytest.mark.parametrize("at", ["a folder", pytest.param("s3", marks=pytest.mark.requires("s3-server"))])
def test_the_main_path_from_staged_files_to_visible_rows(
    tmp_path: Path, settings: Settings, worker: WorkerProcess, at: str
) -> None:
    destination = real_server.new_url() if at == "s3" else ""
    staged = StagedJob(tmp_path, settings, files=40, destination=destination)

    rows = commit_tasks(*staged.ids, staged.task_ids, timeout_s=300)
    assert [row["task_id"] for row in rows] == staged.task_ids
    assert staged.listed() == []
    receipt = staged.attach().commit(complete=complete_by_workers)

    assert (receipt.files, receipt.rows) == (40, 400)
    assert staged.visible_rows() == staged.all_rows
    assert staged.open_uploads() == []
    staged.store.delete_many([info.key for page in staged.store.pages() for info in page])


def test_an_error_in_a_worker_process_is_raised_with_its_type(
    tmp_path: Path, settings: Settings, worker: WorkerProcess
) -> None:
    staged = StagedJob(tmp_path, settings)
    with (staged.staging / "month=1" / "part-00000.parquet").open("ab") as file:
        file.write((staged.staging / "month=2" / "part-00001.parquet").read_bytes())

    with pytest.raises(ConflictError, match="of the frozen listing; nothing of it is committed"):
        commit_tasks(*staged.ids, staged.task_ids, timeout_s=300)


def test_recovery_and_sweep_have_their_own_queues(
    tmp_path: Path, settings: Settings, worker: WorkerProcess
) -> None:
    staged = StagedJob(tmp_path, settings)
    commit_tasks(*staged.ids, staged.task_ids, timeout_s=300)
    staged.attach().suspend(0)

    lapsed = JobAt(staged.destination, staged.job.job_id)
    (recovered,) = recover_by_workers([lapsed], settings=settings, timeout_s=300)
    swept = sweep_blobs(timeout_s=300)

    assert (recovered.action, recovered.ended) == (RecoveryAction.ABORT, JobPhase.FAILED)
    assert (swept.is_dry_run, swept.blobs) == (True, ())
    assert staged.open_uploads() == []


def test_a_worker_uses_the_broker_started_by_a_driver_and_starts_none(
    settings: Settings, worker: WorkerProcess
) -> None:
    before = find_broker(settings)

    (answer,) = app.control.ping(timeout=60, limit=1)

    assert before is not None
    assert list(answer.values()) == [{"ok": "pong"}]
    assert find_broker(settings) == before


def test_the_broker_commands_start_it_show_its_status_and_stop_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKGATE_HOME", str(tmp_path / "home"))
    root = typer.Typer(pretty_exceptions_enable=False)
    register(root)

    def run(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(root, ["broker", *arguments])
        return done.exit_code, done.stdout

    assert run("status", "--json") == (1, '{\n  "running": false\n}\n')
    try:
        assert '"running": true' in run("start", "--json")[1]
        assert run("status")[0] == 0
    finally:
        assert run("stop") == (0, "stopped\n")
    assert run("stop") == (0, "the embedded broker was not running\n")


def test_the_worker_command_runs_a_worker_that_stops_on_a_signal(tmp_path: Path, settings: Settings) -> None:
    log = tmp_path / "log"
    program = "from lockgate.storage_core.cli.root_command import main; main()"
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", program, "worker", "--concurrency", "1", "--queues", "sweep"],
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until(lambda: " ready." in log.read_text())
    finally:
        process.terminate()
    assert process.wait(300) == 0
    assert f"lockgate-{process.pid}@" in log.read_text()


def test_no_password_of_the_broker_is_shown(settings: Settings, worker: WorkerProcess) -> None:
    found = find_broker(settings)
    assert found is not None
    password = found.url.partition("://:")[2].partition("@")[0]

    assert password
    assert password not in worker.log.read_text()
    connect_again()
    assert password not in app.connection_for_write().as_uri()
