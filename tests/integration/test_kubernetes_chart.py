"""The Helm chart: the manifests kept in tests/integration/kubernetes, and with Helm, that it makes them."""

from __future__ import annotations

import copy
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from lockgate.storage_core.cli.root_command import build
from lockgate.storage_core.settings import Settings
from lockgate.workers.broker.embedded_broker import broker_url
from tests.support.postgres import free_port
from tests.support.workers.celery_worker import embedded_broker, wait_until

CHART = Path(__file__).parents[2] / "docker" / "kubernetes" / "lockgate"
KEPT = Path(__file__).parent / "kubernetes"
VALUES = {"default": (), "everything": ("--values", str(KEPT / "everything.values.yaml"))}
SETTINGS = {f"LOCKGATE_{name.upper()}" for name in Settings.__struct_fields__} | {"LOCKGATE_DESTINATIONS"}

pytestmark = pytest.mark.integration


def manifests(name: str) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all((KEPT / f"{name}.yaml").read_text()) if one]


def pods(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the specification of each pod."""
    for one in manifests(name):
        if one["kind"] in {"Deployment", "StatefulSet", "Job"}:
            yield one["metadata"]["name"], one["spec"]["template"]["spec"]
        elif one["kind"] == "Pod":
            yield one["metadata"]["name"], one["spec"]


@pytest.mark.parametrize("name", VALUES)
def test_each_pod_is_unprivileged_and_its_commands_and_settings_exist(name: str) -> None:
    commands = build()
    for pod, spec in pods(name):
        assert spec["securityContext"]["runAsNonRoot"], pod
        assert not spec["automountServiceAccountToken"], pod
        for container in spec["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"], pod
            assert not security["allowPrivilegeEscalation"], pod
            env = {one["name"]: one for one in container["env"]}
            assert {one for one in env if one.startswith("LOCKGATE_")} <= SETTINGS, pod
            for secret in ("LOCKGATE_JOURNAL_URL", "LOCKGATE_BROKER_URL"):
                assert env[secret]["valueFrom"]["secretKeyRef"]["name"] == "lockgate", pod
            if container["command"][0] == "lockgate":
                words = [word.partition("=")[0] for word in container["command"][1:]]
                shown = CliRunner().invoke(commands, [*(word for word in words if word[0] != "-"), "--help"])
                assert shown.exit_code == 0, pod
                assert all(word in shown.output for word in words if word.startswith("--")), pod


@pytest.mark.parametrize("name", VALUES)
def test_services_and_workers_are_alive_without_being_ready_and_have_a_budget(name: str) -> None:
    serving = [one for one in manifests(name) if one["kind"] in {"Deployment", "StatefulSet"}]
    budgets = {one["metadata"]["name"] for one in manifests(name) if one["kind"] == "PodDisruptionBudget"}
    for one in serving:
        (container,) = one["spec"]["template"]["spec"]["containers"]
        live, ready = container["livenessProbe"], container["readinessProbe"]
        assert "tcpSocket" in live
        assert "tcpSocket" not in ready
    named = {one["metadata"]["name"] for one in serving}
    assert budgets == named - {"demo-journal-metrics"}
    assert ("ServiceMonitor" in {one["kind"] for one in manifests(name)}) == (name == "everything")


def test_staged_files_are_at_one_path_in_airflow_the_workers_and_the_compose_file() -> None:
    airflow = yaml.safe_load((CHART.parent / "airflow-values.yaml").read_text())
    containers = [container for _, spec in pods("everything") for container in spec["containers"]]
    homes, places = set(), set()
    for one in [airflow, *containers]:
        homes |= {each["value"] for each in one["env"] if each["name"] == "LOCKGATE_HOME"}
        places |= {each["mountPath"] for each in one["volumeMounts"] if each["name"] == "staging"}
    stack = yaml.safe_load((CHART.parents[1] / "compose.yaml").read_text())["x-hardened"]
    homes.add(stack["environment"]["LOCKGATE_HOME"])
    places |= {each.partition(":")[2] for each in stack["volumes"] if each.startswith("staging:")}
    (home,) = homes
    assert places == {f"{home}/staging"}


def test_only_the_blob_server_has_its_key_and_the_tokens_of_others() -> None:
    holders = {
        pod
        for pod, spec in pods("everything")
        for volume in spec["volumes"]
        for secret in (
            volume.get("secret"),
            *(one["secret"] for one in volume.get("projected", {}).get("sources", ())),
        )
        if secret and {one["key"] for one in secret.get("items", [{"key": "all"}])} & {"all", "blob-tokens"}
    }
    assert holders == {"demo-blobs"}


def test_the_schema_knows_every_value_and_refuses_others() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    jsonschema.validate(values, schema)
    guide = (CHART.parents[2] / "docs" / "guides" / "kubernetes.md").read_text()
    shown = yaml.safe_load(guide.partition("```yaml\n")[2].partition("```")[0])
    jsonschema.validate(shown, schema)
    assert set(values) == set(schema["properties"]) - {"global"}
    for path, value in {
        "image.repositry": "x",
        "settings.LOCKGATE_JOURNAL_URL": "postgresql://user:password@db/x",
        "workers.commit.queues": ["comit"],
        "autoscaling.enabled": True,  # without the broker's address
    }.items():
        changed = copy.deepcopy(values)
        *folders, last = path.split(".")
        place = changed
        for folder in folders:
            place = place[folder]
        place[last] = value
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(changed, schema)


@pytest.mark.soak
@pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed (CONTRIBUTING.md says how)")
@pytest.mark.parametrize("name", VALUES)
def test_helm_makes_the_kept_manifests(name: str) -> None:
    """After a change: `helm template demo docker/kubernetes/lockgate --kube-version 1.31.0 > …/NAME.yaml`."""
    helm("lint", "--strict", str(CHART), *VALUES[name])
    made = helm("template", "demo", str(CHART), "--kube-version", "1.31.0", *VALUES[name])
    assert made == (KEPT / f"{name}.yaml").read_text()


@pytest.mark.soak
@pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed (CONTRIBUTING.md says how)")
def test_the_chart_ships_the_rules_of_prometheus_as_they_are() -> None:
    made = helm(
        "template", "demo", str(CHART), "--kube-version", "1.31.0", "--set", "prometheusRule.enabled=true"
    )
    (rules,) = (one for one in yaml.safe_load_all(made) if one and one["kind"] == "PrometheusRule")
    kept = CHART.parents[1] / "prometheus" / "rules.yml"
    assert rules["spec"] == yaml.safe_load(kept.read_text())


def helm(*arguments: str) -> str:
    return subprocess.run(["helm", *arguments], check=True, capture_output=True, text=True).stdout


@pytest.mark.soak
def test_the_command_of_a_worker_s_pod_runs_and_its_readiness_probe_answers(tmp_path: Path) -> None:
    (container,) = next(spec for pod, spec in pods("default") if pod == "demo-upkeep")["containers"]
    command = [word.replace("$(POD_NAME)", "demo-1") for word in container["command"]]
    metrics = str(free_port())
    bin_folder = Path(sys.executable).parent
    with embedded_broker(tmp_path / "home") as settings:
        env = {**os.environ, "POD_NAME": "demo-1", "PATH": f"{bin_folder}:{os.environ['PATH']}"}
        env |= {"LOCKGATE_BROKER_URL": broker_url(settings), "LOCKGATE_WORKER_METRICS_PORT": metrics}
        probe = container["readinessProbe"]["exec"]["command"]
        assert subprocess.run(probe, env=env, check=False, capture_output=True).returncode != 0
        worker = subprocess.Popen(command, env=env)
        try:
            wait_until(
                lambda: subprocess.run(probe, env=env, check=False, capture_output=True).returncode == 0
            )
            socket.create_connection(("127.0.0.1", int(metrics)), 5).close()
        finally:
            worker.terminate()
            assert worker.wait(60) == 0
