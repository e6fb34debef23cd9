"""After SIGKILL of a driver before, during or after the job commit, a retry or recovery completes the job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockgate.operators.dag_run.job_handle import JobHandle, handle_of
from lockgate.operators.jobs import JobCommitOperator, JobSetupOperator
from lockgate.operators.recovery import JobRecoveryOperator
from lockgate.operators.spark import SparkWriteOperator
from lockgate.storage_core.commit.destination.manifest import read_manifest
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.settings import Settings
from lockgate.workers.task_commit import commit_staged_task
from tests.support.airflow.task_run import TaskRun
from tests.support.workers.celery_worker import StagedJob

pytestmark = [pytest.mark.soak, pytest.mark.integration]

PATIENCE_S = 300.0

COMMIT = """
import json, sys
from lockgate.operators.jobs import JobCommitOperator
from tests.support.airflow.task_run import TaskRun
JobCommitOperator(task_id="commit", job=json.loads(sys.argv[1])).execute(TaskRun(task_id="commit").context())
"""

WRITE = """
import json, sys
from lockgate.operators.spark import SparkWriteOperator
from tests.support.airflow.task_run import TaskRun
from tests.integration.test_airflow_kill import kill_the_task
SparkWriteOperator(
    task_id="write",
    job=json.loads(sys.argv[1]),
    python_callable=kill_the_task,
    op_kwargs={"pids_file": sys.argv[2]},
    master="local[1]",
).execute(TaskRun(task_id="write").context())
"""


def run_and_be_killed(program: str, *arguments: str, **environment: str) -> None:
    """Run a task's process and assert that SIGKILL ends it."""
    ended = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, **environment},
        check=False,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stdout + ended.stderr


def eventually(holds: Callable[[], bool]) -> None:
    """Poll until the condition holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, "it never came to hold"
        time.sleep(0.1)


@pytest.fixture
def committed_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StagedJob:
    """Return a job whose tasks have all committed."""
    monkeypatch.setenv("LOCKGATE_HOME", str(tmp_path / "home"))
    staged = StagedJob(tmp_path, Settings())
    for task in staged.task_ids:
        commit_staged_task(*staged.ids, task)
    return staged


BEFORE = pytest.param("decide.create.before=kill", JobPhase.OPEN, id="before the decision")
WITHIN = pytest.param("complete.complete.before=kill@3", JobPhase.DECIDED, id="in the job commit")
AFTER = pytest.param("success.create.before=kill", JobPhase.PUBLISHED, id="after it is published")


@pytest.mark.parametrize(("point", "phase"), [BEFORE, WITHIN, AFTER])
def test_a_retry_of_the_commit_task_publishes_every_row_once(
    committed_tasks: StagedJob, point: str, phase: JobPhase
) -> None:
    staged = committed_tasks
    handle = handle_of(staged.job)
    run_and_be_killed(COMMIT, json.dumps(handle), LOCKGATE_FAILPOINTS=point)
    assert staged.attach().phase() is phase

    retry = JobCommitOperator(task_id="commit", job=handle)
    receipt = retry.execute(TaskRun(task_id="commit").context())

    assert receipt["rows"] == 60
    assert staged.visible_rows() == staged.all_rows
    assert sorted(staged.listed()) == sorted(read_manifest(staged.destination).files)
    assert staged.open_uploads() == []


@pytest.mark.parametrize(("point", "phase"), [BEFORE, WITHIN])
def test_recovery_publishes_every_row_once_or_reverts_all(
    committed_tasks: StagedJob, point: str, phase: JobPhase
) -> None:
    staged = committed_tasks
    run_and_be_killed(
        COMMIT,
        json.dumps(handle_of(staged.job)),
        LOCKGATE_FAILPOINTS=point,
        LOCKGATE_LEASE_HARD_S="10",  # a driver paused for longer by a slow machine is fenced
        LOCKGATE_LEASE_RENEW_S="0.1",
        LOCKGATE_COMMIT_WINDOW_S="5",
    )

    def settled() -> bool:
        recovery = JobRecoveryOperator(task_id="recover", destinations=[staged.destination])
        recovery.execute(TaskRun(task_id="recover").context())
        return staged.attach().phase() in {JobPhase.COMMITTED, JobPhase.FAILED}

    eventually(settled)

    rows = [] if phase is JobPhase.OPEN else staged.all_rows
    assert staged.visible_rows() == rows
    assert len(staged.listed()) == (0 if phase is JobPhase.OPEN else 6)
    assert staged.open_uploads() == []


def kill_the_task(spark: Any, *, pids_file: str) -> Any:
    """Kill the task of this Spark child, like an OOM killer, and continue."""
    jvm = spark.sparkContext._gateway.proc.pid
    Path(pids_file).write_text(json.dumps([os.getpid(), jvm]))
    os.kill(os.getppid(), signal.SIGKILL)
    signal.pause()


def twenty_rows(spark: Any) -> Any:
    """Return the data of the retry."""
    return spark.range(20).selectExpr("cast(id as int) as row", "cast(id % 2 as int) as half")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_spark_dies_with_its_task_and_the_retry_writes_every_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKGATE_HOME", str(tmp_path / "home"))
    destination = str(tmp_path / "lake")
    setup = JobSetupOperator(task_id="setup", destination=destination)
    handle: JobHandle = setup.execute(TaskRun().context())

    run_and_be_killed(WRITE, json.dumps(handle), str(tmp_path / "pids"))
    pids = json.loads((tmp_path / "pids").read_text())
    eventually(lambda: not any(map(alive, pids)))

    run = TaskRun(task_id="write")
    write = SparkWriteOperator(
        task_id="write",
        job=handle,
        python_callable=twenty_rows,
        partition_by=["half"],
        master="local[1]",
        chunks=1,
    )
    [tasks] = write.execute(run.context())
    handed_on = run.pushed["job"]
    for task in tasks:
        commit_staged_task(handed_on["destination"], handed_on["job_id"], handed_on["job_attempt"], task)
    receipt = JobCommitOperator(task_id="commit", job=handed_on).execute(TaskRun(task_id="commit").context())

    assert handed_on["job_attempt"] != handle["job_attempt"]
    assert (receipt["rows"], receipt["files"]) == (20, 2)
    assert not list((tmp_path / "home" / "staging").glob("*/*"))
