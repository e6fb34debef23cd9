"""The images of docker/ and the services of its compose file, on a Docker engine; run by `make images-test`.

It needs no image registry: the images beneath are stand-ins from Debian's packages, with this machine's
certificates. The tests of this file build on one another, in their order.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from examples.flights.data import flights, library
from scripts import s3_server
from scripts.stack import DOCKER, main

HERE = Path(__file__).parent
STAND_INS = ("python", "airflow", "redis", "postgres", "prometheus", "s3")
CERTIFICATES = Path(os.environ.get("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt"))
PORTS = {"AIRFLOW": 18080, "S3": 17070, "SPARK": 18081, "PROMETHEUS": 19090, "GRAFANA": 13000}
DESTINATION = "s3://lake/flights"
LARGEST_BYTES = 900 * 10**6
TOOLS = ("pytest", "moto", "mypy", "ruff", "playwright")

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.requires("docker")]


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


@dataclass
class Stack:
    """The services that run, as a user reaches them."""

    data: Path

    @cached_property
    def airflow(self) -> str:
        return f"http://127.0.0.1:{PORTS['AIRFLOW']}"

    def token(self, user: str) -> str:
        users = json.loads(self.inside("worker", "cat", "/run/secrets/lockgate/airflow-users.json"))
        return str(
            get(f"{self.airflow}/auth/token", body={"username": user, "password": users[user]})[
                "access_token"
            ]
        )

    def inside(self, service: str, *command: str) -> str:
        return docker("compose", "exec", "-T", service, *command)

    def lockgate(self, *arguments: str) -> str:
        return self.inside("worker", "with-secrets", "lockgate", *arguments)

    def containers(self) -> dict[str, Mapping[str, Any]]:
        lines = docker("compose", "ps", "--all", "--format", "json").splitlines()
        return {one["Name"]: one for one in map(json.loads, lines)}

    def run(self, mode: str, *, master: str | None = None) -> Mapping[str, Any]:
        """Trigger the demo's job as the form does, and return its receipt."""
        conf = flights.run_conf(
            Path("/data/flights.csv"), Path("/data", self.wheel.name), DESTINATION, mode
        ) | ({"master": master} if master else {})
        token = self.token("user")
        runs = f"{self.airflow}/api/v2/dags/dataset_commit/dagRuns"
        run_id = get(runs, token=token, body={"logical_date": None, "conf": conf})["dag_run_id"]
        deadline_s = time.monotonic() + 900
        while (state := get(f"{runs}/{run_id}", token=token)["state"]) not in {"success", "failed"}:
            assert time.monotonic() < deadline_s, state
            time.sleep(2)
        assert state == "success", docker("compose", "logs", "--tail", "100", "airflow-worker")
        xcom = f"{runs}/{run_id}/taskInstances/commit/xcomEntries/return_value"
        return dict(get(xcom, token=token)["value"])

    @cached_property
    def wheel(self) -> Path:
        return next(self.data.glob("*.whl"))


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Set the variables of the compose file, and yield the folder of sources."""
    data = tmp_path_factory.mktemp("data")
    library.build(data), flights.extract(data)
    for path in (data, *data.iterdir()):
        path.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMPOSE_FILE", f"{DOCKER / 'compose.yaml'}{os.pathsep}{HERE / 'stand-ins.yaml'}")
        patch.setenv("LOCKGATE_DATA", str(data))
        patch.setenv("LOCKGATE_DAGS", str(tmp_path_factory.mktemp("dags")))
        patch.setenv("LOCKGATE_TRIGGER_TRANSFORMS", json.dumps([library.TRANSFORM]))
        for name, port in PORTS.items():
            patch.setenv(f"LOCKGATE_{name}_PORT", str(port))
        yield data


@pytest.fixture(scope="session")
def images(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Build the stand-ins that are missing, and both images on them."""
    if not docker("images", "--quiet", "lockgate-stand-in/debian"):
        root = tmp_path_factory.mktemp("debian")
        subprocess.run(["debootstrap", "--variant=minbase", "bookworm", root], check=True)
        shutil.copy(CERTIFICATES, root / "etc/ssl/machine.crt")
        with subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE) as packed:
            subprocess.run(
                ["docker", "import", "-", "lockgate-stand-in/debian"], stdin=packed.stdout, check=True
            )
        shutil.rmtree(root)
    context = tmp_path_factory.mktemp("context")
    s3_server.build()
    shutil.copy(s3_server.BINARY, context / "versitygw")
    shutil.copy(HERE / "postgres-entrypoint", context)
    for name in STAND_INS:
        arguments = ("--file", str(HERE / "stand-ins.Dockerfile"), "--target", name, str(context))
        docker("build", "--quiet", "--tag", f"lockgate-stand-in/{name}", *arguments)
    docker("compose", "build", "worker", "airflow-worker")


@pytest.fixture(scope="session")
def stack(images: None, environment: Path) -> Iterator[Stack]:
    assert main(["up"]) == 0
    yield Stack(environment)
    docker("compose", "--profile", "*", "down", "--volumes", "--remove-orphans")


def test_the_workers_image_is_small_and_both_hold_no_tool_of_the_tests(images: None) -> None:
    of_ours, beneath = (
        int(docker("image", "inspect", "--format", "{{.Size}}", name))
        for name in ("lockgate/workers:0.1.0", "lockgate-stand-in/python")
    )
    print(f"workers: {of_ours / 10**6:.0f} MB, {beneath / 10**6:.0f} of them the stand-in for Python's image")
    assert of_ours < LARGEST_BYTES
    for image in ("workers", "airflow"):
        found = f"import importlib.util as u; print([n for n in {TOOLS} if u.find_spec(n)])"
        command = ("run", "--rm", "--entrypoint", "python", f"lockgate/{image}:0.1.0", "-c", found)
        assert docker(*command) == "[]", image
        assert docker("run", "--rm", "--entrypoint", "id", f"lockgate/{image}:0.1.0", "--user") == "50000"


def test_a_second_up_changes_nothing(stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    before = {name: one["ID"] for name, one in stack.containers().items()}
    assert main(["up"]) == 0
    assert {name: one["ID"] for name, one in stack.containers().items()} == before
    assert "password" not in capsys.readouterr().out


@pytest.mark.parametrize("master", [None, "spark://spark-master:7077"])
def test_the_form_writes_all_flights(stack: Stack, master: str | None) -> None:
    receipt = stack.run("replace", master=master)
    assert receipt["rows"] == flights.ROWS
    listed = stack.lockgate("jobs", "list", DESTINATION)
    assert receipt["job_id"] in listed


def test_prometheus_answers_each_query_of_the_dashboard(stack: Stack) -> None:
    time.sleep(35)  # two scrapes, for rates
    dashboard = json.loads((DOCKER / "grafana" / "lockgate.json").read_text())
    answers = {}
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            query = re.sub(r"\$__\w+", "1m", target["expr"]).replace("$journal", ".*")
            url = f"http://127.0.0.1:{PORTS['PROMETHEUS']}/api/v1/query?{urlencode({'query': query})}"
            answers[query] = get(url)["data"]["result"]
    print(
        json.dumps(
            {query: [one["value"][1] for one in answer] for query, answer in answers.items()}, indent=1
        )
    )
    (needing,) = answers['sum(lockgate_jobs_need_you{journal=~".*"})']
    assert needing["value"][1] == "0"


def test_idle_services_end_within_ten_seconds_of_sigterm(stack: Stack) -> None:
    for service in ("worker", "blobs", "journal-metrics"):
        began_s = time.monotonic()
        docker("compose", "stop", "--timeout", "60", service)
        seconds = time.monotonic() - began_s
        print(f"{service}: {seconds:.1f} s")
        assert seconds < 10, service
        codes = {one["ExitCode"] for one in stack.containers().values() if one["Service"] == service}
        assert codes <= {0, 143}, service
    assert main(["up"]) == 0


def test_down_leaves_named_volumes_and_up_finds_the_data(stack: Stack) -> None:
    jobs = stack.lockgate("jobs", "list", DESTINATION)
    assert main(["down"]) == 0
    assert stack.containers() == {}
    volumes = docker("volume", "ls", "--quiet", "--filter", "name=lockgate-images-test").split()
    assert all(name.startswith("lockgate-images-test_") for name in volumes)
    assert main(["up"]) == 0
    assert stack.lockgate("jobs", "list", DESTINATION) == jobs
