"""The images, built on stand-ins, and the services that run from them, for all tests of this folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.flights.data import flights, library
from scripts import s3_server
from scripts.stack import DOCKER, main
from tests.integration.stack.services import HERE, PORTS, Stack, docker

STAND_INS = ("python", "airflow", "redis", "postgres", "prometheus", "s3")
CERTIFICATES = Path(os.environ.get("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt"))


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
    try:
        assert main(["up"]) == 0
        yield Stack(environment)
    finally:
        docker("compose", "--profile", "*", "down", "--volumes", "--remove-orphans")


@pytest.fixture
def small_disks(stack: Stack) -> Iterator[Stack]:
    """Run a second stack without Airflow, whose volumes are small disks; the first one is ended for it."""
    assert main(["down"]) == 0
    files = os.environ["COMPOSE_FILE"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMPOSE_FILE", f"{files}{os.pathsep}{HERE / 'small-disks.yaml'}")
        patch.setenv("COMPOSE_PROJECT_NAME", "lockgate-small-disks")
        try:
            assert main(["up", "disks"]) == 0  # while it runs, the disks keep what is written
            assert main(["up", "worker", "blobs", "standby", "journal-metrics"]) == 0
            yield stack
        finally:
            docker("compose", "--profile", "*", "down", "--volumes", "--remove-orphans", "--timeout", "5")
