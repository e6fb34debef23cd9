"""The files of docker/: what the compose file promises, and what the images hold."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from lockgate.storage_core import VERSION
from lockgate.storage_core.settings import Settings

DOCKER = Path(__file__).parents[2] / "docker"
COMPOSE = (DOCKER / "compose.yaml").read_text()
STACK: Mapping[str, Any] = yaml.safe_load(COMPOSE)
SERVICES: Mapping[str, Mapping[str, Any]] = STACK["services"]
OURS = {name for name, one in SERVICES.items() if one["image"].startswith("lockgate/")}
ONCE = {"secrets", "init", "airflow-init"}
VARIABLE = re.compile(r"\$\{(\w+)(?::?-([^}]*))?\}")


def pins(lock: str) -> set[str]:
    """Return the pins of a lock file, with their markers left out."""
    return set(re.findall(r"^([a-z0-9-]+==[^ ;]+)", (DOCKER / lock).read_text(), re.MULTILINE))


def shown(text: str) -> str:
    """Return a text of the compose file with its variables' defaults."""
    return VARIABLE.sub(lambda match: match[2] or "", text)


def test_each_image_is_named_once_and_pinned() -> None:
    images = re.findall(r"^ +image: (\S+)$", COMPOSE, re.MULTILINE)
    assert len(images) == len(set(images))
    for image in images:
        _, _, tag = shown(image).rpartition(":")
        assert re.search(r"\d+\.\d+", tag), image
    assert {shown(SERVICES[name]["image"]).rpartition(":")[2] for name in OURS} == {VERSION}


def test_each_service_that_stays_has_a_health_check_and_each_that_ends_none() -> None:
    dockerfile = (DOCKER / "Dockerfile").read_text()
    for name, one in SERVICES.items():
        if name in ONCE:
            assert one["healthcheck"] == {"disable": True}, name
            assert one["restart"] == "no", name
        else:
            assert one.get("healthcheck", {}).get("test") or (
                name == "worker" and "HEALTHCHECK" in dockerfile
            ), name
            assert one["restart"] == "unless-stopped", name


def test_ports_are_on_loopback_and_no_two_are_the_same() -> None:
    ports = [shown(port) for one in SERVICES.values() for port in one.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert len({port.split(":")[1] for port in ports}) == len(ports)


def test_ours_run_unprivileged_on_a_read_only_root() -> None:
    assert {"worker", "blobs", "airflow-worker", "spark-worker"} <= OURS
    for name in OURS:
        one = SERVICES[name]
        assert one["read_only"], name
        assert one["cap_drop"] == ["ALL"], name
        assert one["security_opt"] == ["no-new-privileges:true"], name
        # Only the service that makes the volumes' folders is root; the images' user is 50000.
        assert one.get("user") == ("root" if name == "secrets" else None), name
    for stage in re.split(r"^FROM ", (DOCKER / "Dockerfile").read_text(), flags=re.MULTILINE):
        if stage.startswith(("${PYTHON} AS workers", "${AIRFLOW} AS airflow")):
            assert re.findall(r"^USER (\S+)", stage, re.MULTILINE)[-1] in {"50000:50000", "airflow"}


def test_no_password_is_in_the_files_and_executors_see_none() -> None:
    for name, one in SERVICES.items():
        for variable, value in one.get("environment", {}).items():
            is_secret = re.search(r"PASSWORD|SECRET|TOKEN|_KEY", variable)
            assert not is_secret or value is None or str(value).startswith(("/run/secrets/", "/home/")), (
                name,
                variable,
            )
    for name in ("spark-master", "spark-worker"):
        assert not any("secrets" in volume for volume in SERVICES[name]["volumes"]), name
        assert SERVICES[name]["environment"] == {}, name


def test_every_setting_exists_and_the_example_names_each_variable_with_its_default() -> None:
    known = {f"LOCKGATE_{name.upper()}" for name in Settings.__struct_fields__} | {"LOCKGATE_DESTINATIONS"}
    for name, one in SERVICES.items():
        assert {
            variable for variable in one.get("environment", {}) if variable.startswith("LOCKGATE_")
        } <= known, name
    variables = {
        **dict(VARIABLE.findall(COMPOSE)),
        **dict.fromkeys(re.findall(r"^    (\w+):$", COMPOSE, re.MULTILINE), ""),
    }
    example = dict(re.findall(r"^#([A-Z]\w+)=(\S*)", (DOCKER / ".env.example").read_text(), re.MULTILINE))
    assert example.pop("COMPOSE_PROFILES") == "spark,monitoring"
    assert example == {name: default for name, default in variables.items() if name.isupper()}


def test_a_service_waits_only_for_services_of_its_profile_and_volumes_are_named() -> None:
    for name, one in SERVICES.items():
        for other in one.get("depends_on", {}):
            assert set(SERVICES[other].get("profiles", ())) <= set(one.get("profiles", ())), (name, other)
        for volume in one.get("volumes", ()):
            source = shown(volume).partition(":")[0]
            assert source.startswith("./") or source in STACK["volumes"], (name, volume)


@pytest.mark.parametrize("lock", ["workers.lock", "airflow.lock", "build.lock"])
def test_the_images_hold_what_is_locked_for_the_tests_and_no_tool_of_theirs(lock: str) -> None:
    assert pins(lock) <= pins("../requirements.lock")
    names = {pin.partition("==")[0] for pin in pins(lock)}
    assert not names & {"pytest", "moto", "mypy", "ruff", "playwright", "hypothesis", "duckdb", "polars"}
    assert ("pyspark" in names) == (lock == "airflow.lock")


def test_a_command_gets_the_secrets_that_are_not_set(tmp_path: Path) -> None:
    (tmp_path / "LOCKGATE_JOURNAL_URL").write_text("postgresql://it")
    (tmp_path / "AWS_REGION").write_text("theirs")
    (tmp_path / "redis.conf").write_text("requirepass it")
    script = (DOCKER / "with-secrets").read_text().replace("/run/secrets/lockgate", str(tmp_path))
    environment = {"PATH": "/usr/bin:/bin", "AWS_REGION": "ours"}
    printed = subprocess.run(
        ["sh", "-c", script, "sh", sys.executable, "-c", "import os; print(dict(os.environ))"],
        env=environment, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert "'LOCKGATE_JOURNAL_URL': 'postgresql://it'" in printed
    assert "'AWS_REGION': 'ours'" in printed
    assert "requirepass" not in printed
