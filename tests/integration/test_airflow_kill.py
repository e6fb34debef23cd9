"""After SIGKILL of the task that runs Spark, Spark ends too, and a retry writes every row once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lockgate.operators.dag_run.job_handle import JobHandle
from lockgate.operators.jobs import JobCommitOperator, JobSetupOperator
from lockgate.operators.spark import SparkWriteOperator
from lockgate.workers.task_commit import commit_staged_task
from tests.support.airflow.task_run import TaskRun
from tests.support.workers.celery_worker import wait_until

pytestmark = [pytest.mark.soak, pytest.mark.integration]

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

    program = [sys.executable, "-c", WRITE, json.dumps(handle), str(tmp_path / "pids")]
    ended = subprocess.run(program, check=False, capture_output=True, text=True, timeout=200)
    assert ended.returncode == -signal.SIGKILL, ended.stdout + ended.stderr
    pids = json.loads((tmp_path / "pids").read_text())
    wait_until(lambda: not any(map(alive, pids)))

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
