"""The services of docker/compose.yaml on a Docker engine, as a user reaches them."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar
from urllib.parse import urlencode

from examples.flights.data import flights
from scripts.stack import DOCKER

HERE = Path(__file__).parent
PORTS = {"AIRFLOW": 18080, "S3": 17070, "SPARK": 18081, "PROMETHEUS": 19090, "GRAFANA": 13000}
DESTINATION = "s3://lake/flights"
PATIENCE_S = 300.0

T = TypeVar("T")


def docker(*arguments: str) -> str:
    return subprocess.run(
        ["docker", *arguments], check=True, stdout=subprocess.PIPE, text=True, cwd=DOCKER
    ).stdout.strip()


def get(url: str, *, token: str | None = None, body: Mapping[str, Any] | None = None) -> Any:
    request = urllib.request.Request(
        url,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def until(found: Callable[[], T | None], *, patience_s: float = PATIENCE_S) -> T:
    """Ask until the answer is true; a service that does not answer is asked again."""
    deadline_s = time.monotonic() + patience_s
    while True:
        try:
            if answer := found():
                return answer
            seen = repr(answer)
        except (OSError, KeyError, subprocess.CalledProcessError) as error:
            seen = repr(error)
        assert time.monotonic() < deadline_s, seen
        time.sleep(0.5)


@dataclass
class Storm:
    """What a storm's driver said: one answer a job and a blob, and a last one of all of them."""

    answers: list[Mapping[str, Any]] = field(default_factory=list)

    def read(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.answers.append(json.loads(line))

    def committed(self, *, since: float) -> Mapping[str, Any]:
        """Wait for the first job that began after a moment and was committed."""
        return until(
            lambda: next((one for one in self.jobs() if one["began"] > since and not one["error"]), None),
            # A message that a worker had when it lost the broker comes again after LOCKGATE_REDELIVERY_S.
            patience_s=2 * PATIENCE_S,
        )

    def jobs(self) -> list[Mapping[str, Any]]:
        """Return the outcomes of the jobs, in their order."""
        return [one for one in self.answers if one["what"] == "job"]

    @property
    def end(self) -> Mapping[str, Any]:
        """What was visible after the storm."""
        return self.answers[-1]


@dataclass
class Stack:
    """The services that run, as a user reaches them."""

    data: Path

    @cached_property
    def airflow(self) -> str:
        return f"http://127.0.0.1:{PORTS['AIRFLOW']}"

    def password(self, user: str) -> str:
        return str(json.loads(self.inside("redis", "cat", "/run/secrets/lockgate/airflow-users.json"))[user])

    @cached_property
    def token(self) -> str:
        user = {"username": "user", "password": self.password("user")}
        return str(get(f"{self.airflow}/auth/token", body=user)["access_token"])

    def inside(self, service: str, *command: str) -> str:
        return docker("compose", "exec", "-T", service, *command)

    def lockgate(self, *arguments: str) -> str:
        return self.inside("worker", "with-secrets", "lockgate", *arguments)

    def containers(self) -> dict[str, Mapping[str, Any]]:
        lines = docker("compose", "ps", "--all", "--format", "json").splitlines()
        return {one["Name"]: one for one in map(json.loads, lines) if one["Name"] != "storm"}

    def trigger(self, conf: Mapping[str, Any]) -> str:
        """Start a run of `dataset_commit` as the form does, and return its id."""
        run = get(self.runs, token=self.token, body={"logical_date": None, "conf": conf})
        return str(run["dag_run_id"])

    def receipt(self, run_id: str) -> Mapping[str, Any]:
        """Wait for the end of a run, and return the receipt of its commit."""

        def state_at_end() -> str | None:
            state = str(self.asked(run_id)["state"])
            return state if state in {"success", "failed"} else None

        state = until(state_at_end, patience_s=1_200)
        assert state == "success", docker("compose", "logs", "--tail", "100", "airflow-worker")
        return dict(self.asked(f"{run_id}/taskInstances/commit/xcomEntries/return_value")["value"])

    def asked(self, path: str) -> Any:
        """Return what Airflow's API says of a run."""
        return get(f"{self.runs}/{path}", token=self.token)

    @property
    def runs(self) -> str:
        return f"{self.airflow}/api/v2/dags/dataset_commit/dagRuns"

    def flights(self) -> dict[str, Any]:
        """Return what the demo enters into the form."""
        wheel = next(self.data.glob("*.whl"))
        return flights.run_conf(Path("/data/flights.csv"), Path("/data", wheel.name), DESTINATION, "replace")

    def figures(self, query: str) -> dict[tuple[str, ...], float]:
        """Ask Prometheus; return the values by those of their labels, in the order of the labels' names."""
        url = f"http://127.0.0.1:{PORTS['PROMETHEUS']}/api/v1/query?{urlencode({'query': query})}"
        return {
            tuple(value for _, value in sorted(one["metric"].items())): float(one["value"][1])
            for one in get(url)["data"]["result"]
        }

    def container(self, service: str) -> str:
        """Return the name of the first container of a service."""
        return min(name for name, one in self.containers().items() if one["Service"] == service)

    @contextmanager
    def storm(self) -> Iterator[Storm]:
        """Commit one job after the other, and put blobs, in a container beside the services."""
        script = ("--volume", f"{HERE / 'storm.py'}:/storm.py:ro", "journal-metrics", "python", "/storm.py")
        with subprocess.Popen(
            ["docker", "compose", "run", "--rm", "-T", "--no-deps", "--name", "storm", *script],
            cwd=DOCKER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            assert process.stdin
            assert process.stdout
            storm = Storm()
            reader = Thread(target=storm.read, args=[process.stdout], daemon=True)
            reader.start()
            try:
                storm.committed(since=0)
                yield storm
            finally:
                process.stdin.close()
                process.wait(300)
            reader.join()
