"""Run DAGs in a private Airflow, each in a child process: `airflow dags test`."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from examples.flights.processes.children import started
from examples.flights.steps import DemoFailedError
from lockgate.operators.dag_files import dags_dir

MIGRATION_TIMEOUT_S: Final = 300.0
RUN_TIMEOUT_S: Final = 600.0


@dataclass(frozen=True)
class TaskRun:
    """One task of a DAG run, its mapped instances added up."""

    task_id: str
    state: str
    seconds: float
    returned: list[Any]


@dataclass(frozen=True)
class DagRun:
    """One execution of a DAG.

    Attributes:
        returncode: Exit code of the process; negative: the signal that killed it.
        state: State in Airflow's database.
    """

    dag_id: str
    returncode: int
    seconds: float
    log: Path
    run_id: str
    state: str
    tasks: Mapping[str, TaskRun]


@dataclass(frozen=True)
class AirflowHome:
    """A private `AIRFLOW_HOME` with a SQLite database and Lockgate's DAGs.

    Attributes:
        path: The folder, which `create` creates.
        environment: Additional environment of every process that is started here.
    """

    path: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    def create(self) -> None:
        """Create the home and its database.

        Raises:
            DemoFailedError: Airflow could not create its database.
        """
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        log = self.path / "migration.log"
        if self._airflow(["db", "migrate"], log, {}, MIGRATION_TIMEOUT_S) != 0:
            raise DemoFailedError(f"airflow could not create its database; see {log}")

    def run(
        self, dag_id: str, conf: Mapping[str, Any], *, environment: Mapping[str, str] | None = None
    ) -> DagRun:
        """Execute a DAG once, until it ends or its process dies; a killed process is not an error.

        Args:
            dag_id: Id of a DAG in `dags/`.
            conf: The run's parameters.
            environment: Additional environment of this run, such as a failpoint.

        Raises:
            DemoFailedError: Airflow did not begin the run.
        """
        began_s = time.monotonic()
        log = self.path / f"{dag_id}-{time.strftime('%H%M%S')}.log"
        returncode = self._airflow(
            ["dags", "test", dag_id, "--conf", json.dumps(conf)], log, environment or {}, RUN_TIMEOUT_S
        )
        seconds = time.monotonic() - began_s
        with closing(sqlite3.connect(self.path / "airflow.db")) as database:
            newest = database.execute(
                "select run_id, state from dag_run where dag_id = ? order by id desc limit 1", (dag_id,)
            ).fetchone()
            if newest is None:
                raise DemoFailedError(f"airflow did not begin a run of {dag_id}; see {log}")
            run_id, state = newest
            tasks = _task_runs(database, dag_id, run_id)
        return DagRun(dag_id, returncode, seconds, log, run_id, state, tasks)

    def _airflow(
        self, arguments: list[str], log: Path, environment: Mapping[str, str], timeout_s: float
    ) -> int:
        command = [sys.executable, "-m", "airflow", *arguments]
        with started(command, log, {**self._settings(), **self.environment, **environment}) as process:
            try:
                return process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                raise DemoFailedError(
                    f"airflow {arguments[0]} took more than {timeout_s:.0f} s; see {log}"
                ) from None

    def _settings(self) -> dict[str, str]:
        return {
            "AIRFLOW_HOME": str(self.path),
            "AIRFLOW__CORE__DAGS_FOLDER": str(dags_dir()),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.path}/airflow.db",
            "GX_ANALYTICS_ENABLED": "false",
        }


def _task_runs(database: sqlite3.Connection, dag_id: str, run_id: str) -> dict[str, TaskRun]:
    where = "where dag_id = ? and run_id = ?"
    values: dict[str, list[Any]] = {}
    for task_id, value in database.execute(
        f"select task_id, value from xcom {where} and key = 'return_value' order by map_index",  # noqa: S608 - constant
        (dag_id, run_id),
    ):
        values.setdefault(task_id, []).append(_plain(value))
    runs: dict[str, TaskRun] = {}
    for task_id, state, start, end in database.execute(
        f"select task_id, state, start_date, end_date from task_instance {where} order by start_date",  # noqa: S608
        (dag_id, run_id),
    ):
        seconds = (_time(end) - _time(start)).total_seconds() if start and end else 0.0
        earlier = runs.get(task_id)
        runs[task_id] = TaskRun(
            task_id, state or "none", seconds + (earlier.seconds if earlier else 0.0), values.get(task_id, [])
        )
    return runs


def _plain(value: Any) -> Any:
    """Return an XCom value; the database stores JSON, sometimes nested."""
    while isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            break
    return value


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
