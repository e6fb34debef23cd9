"""A private Airflow as users run it: an API server, and a scheduler whose tasks are processes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from examples.flights.processes.airflow_home import AirflowHome
from examples.flights.processes.children import ended
from tests.support.airflow.home import create

T = TypeVar("T")

PATIENCE_S = 400.0
"""Until something that is sure to come must have come, on a machine that is very slow."""


@dataclass(frozen=True)
class Services:
    """A running Airflow.

    Attributes:
        home: Folder of its database and its logs.
        url: URL of the API server.
        environment: Environment of every process.
        logs: Folder of the processes' output.
        user: Name and password of the user who calls the API; None: an administrator without a password.
        database: URL of its PostgreSQL database; empty: it is a SQLite file.
    """

    home: AirflowHome
    url: str
    environment: Mapping[str, str]
    logs: Path
    user: tuple[str, str] | None = None
    database: str = ""

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Call Airflow's REST API."""
        return self._call(method, f"{self.url}/api/v2/{path}", body)

    def ui(self, path: str) -> Any:
        """Read what Airflow's own pages read."""
        return self._call("GET", f"{self.url}/ui/{path}", None)

    def lockgate(self, method: str, path: str, body: object = None) -> Any:
        """Call the JSON API of Lockgate's plugin."""
        return self._call(method, f"{self.url}/lockgate/api/v1/{path}", body)

    def _call(self, method: str, url: str, body: object) -> Any:
        request = urllib.request.Request(
            url,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "authorization": f"Bearer {self._token()}",
                "content-type": "application/json",
                "accept": "application/json",
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                data = answer.read()
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {url}: {error.code}: {error.read()!r}") from error
        return json.loads(data) if data else None

    def trigger(self, dag_id: str, conf: Mapping[str, Any]) -> str:
        """Start a run; return its id."""
        self.call("PATCH", f"dags/{dag_id}?update_mask=is_paused", {"is_paused": False})
        run = self.call("POST", f"dags/{dag_id}/dagRuns", {"logical_date": None, "conf": dict(conf)})
        return str(run["dag_run_id"])

    def ended_as(self, dag_id: str, run_id: str) -> str:
        """Return the state of a run, once it has ended."""

        def state() -> str | None:
            found = self.call("GET", f"dags/{dag_id}/dagRuns/{quoted(run_id)}")["state"]
            return found if found in {"success", "failed"} else None

        return sure(state, f"{dag_id} {run_id} did not end")

    def log(self, dag_id: str, run_id: str, task_id: str, attempt: int = 1) -> list[str]:
        """Return the events of a task's log, as Airflow's page shows them."""
        path = (
            f"dags/{dag_id}/dagRuns/{quoted(run_id)}/taskInstances/{task_id}/logs/{attempt}?full_content=true"
        )
        return [str(event["event"]) for event in self.call("GET", path)["content"]]

    def whole_log(self, dag_id: str, run_id: str, task_id: str, attempt: int = 1) -> str:
        """Return a task's log with the errors' details, as text."""
        path = f"dags/{dag_id}/dagRuns/{quoted(run_id)}/taskInstances/{task_id}/logs/{attempt}"
        content = self.call("GET", f"{path}?full_content=true")["content"]
        return json.dumps(content, ensure_ascii=False)

    def state(self, dag_id: str, run_id: str, task_id: str) -> str | None:
        """Return the state of a task."""
        found = self.call("GET", f"dags/{dag_id}/dagRuns/{quoted(run_id)}/taskInstances/{task_id}")
        return None if found["state"] is None else str(found["state"])

    @contextmanager
    def process(
        self, name: str, *arguments: str, environment: Mapping[str, str] | None = None
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Run one of Airflow's processes until the block ends; it leads its own process group.

        Args:
            name: Name of the file below `logs` for its output.
            arguments: Arguments of `airflow`.
            environment: Additional environment of this process.
        """
        with (
            (self.logs / f"{name}.log").open("wb") as output,
            subprocess.Popen(
                [sys.executable, "-m", "airflow", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.environment, **(environment or {})},
                start_new_session=True,
            ) as process,
            ended(process),
        ):
            yield process

    def command(self, *arguments: str) -> str:
        """Run a command with access to Airflow's database; return its output."""
        done = subprocess.run(
            arguments,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _token(self) -> str:
        request = urllib.request.Request(f"{self.url}/auth/token")
        if self.user is not None:
            request.data = json.dumps(dict(zip(("username", "password"), self.user, strict=True))).encode()
            request.add_header("content-type", "application/json")
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return str(json.loads(answer.read())["access_token"])


@contextmanager
def running_airflow(
    root: Path,
    dags: Path,
    environment: Mapping[str, str],
    *,
    roles: Mapping[str, str] | None = None,
    database: str = "",
) -> Iterator[Services]:
    """Run an Airflow with the DAGs of a folder until the block ends.

    Args:
        root: Folder for its files.
        dags: Folder of the DAG files.
        environment: Additional environment of every process.
        roles: Role of each user, whose password is the name; None: everybody is an administrator.
        database: URL of an empty PostgreSQL database. With SQLite, Airflow's API server sometimes waits for
            itself: it logs an action in its event loop, which is to commit the transaction that has the file.
    """
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    mine = {
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        # Its processes wait for each other; by default 5 s, too short for a busy machine.
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{root}/airflow/airflow.db?timeout=120",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "AIRFLOW__CORE__PARALLELISM": "2",
        "AIRFLOW__API_AUTH__JWT_SECRET": "a secret of a test " * 4,
        "AIRFLOW__API__SECRET_KEY": "another secret of a test",
        "AIRFLOW__API__BASE_URL": url,
        **(_users(root, roles) if roles else {}),
        **environment,
    }
    if database:
        metadata = database.replace("://", "+psycopg://")
        mine |= {
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": metadata,
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": metadata,
        }
    home = AirflowHome(root / "airflow", mine)
    services = Services(home, url, {**home._settings(), **mine}, root, database=database)
    if database:
        home.path.mkdir(mode=0o700)
        services.command(sys.executable, "-m", "airflow", "db", "migrate")
    else:
        create(home)
    services.command(sys.executable, "-m", "airflow", "dags", "reserialize")
    with (
        services.process("api-server", "api-server", "--port", str(port), "--workers", "1"),
        services.process("scheduler", "scheduler"),
    ):
        sure(lambda: _answers(url), f"the API server did not begin; see {root}/api-server.log")
        yield services


def _users(root: Path, roles: Mapping[str, str]) -> dict[str, str]:
    passwords = root / "passwords.json"
    passwords.write_text(json.dumps({name: name for name in roles}))
    return {
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(
            f"{name}:{role}" for name, role in roles.items()
        ),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
    }


def sure(ask: Callable[[], T | None], otherwise: str) -> T:
    """Poll until there is a result, which is certain to come."""
    until = time.monotonic() + PATIENCE_S
    while (answer := ask()) is None:
        if time.monotonic() > until:
            raise AssertionError(otherwise)
        time.sleep(0.5)
    return answer


def quoted(name: str) -> str:
    return urllib.parse.quote(name, safe="")


def _answers(url: str) -> bool | None:
    try:
        with urllib.request.urlopen(f"{url}/api/v2/version", timeout=30):
            return True
    except OSError:
        return None


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
