"""Tests of a user who may only trigger DAGs, by Airflow's REST API: a form gives no rights of the worker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockgate.operators.dag_files import install_stubs
from lockgate.storage_core.commit.destination.visible_files import visible_files
from lockgate.storage_core.stores import open_store
from tests.support.airflow.services import Services, running_airflow

pytestmark = [pytest.mark.soak, pytest.mark.integration, pytest.mark.timeout(900)]

SECRET = "not-for-everyone"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("rights")
    (root / "in").mkdir()
    (root / "in" / "orders.json").write_text('{"id": 1}\n')
    return root


@pytest.fixture(scope="module")
def airflow(root: Path) -> Iterator[Services]:
    """Yield an Airflow whose workers have secrets, as a user who may only trigger DAGs."""
    dags = root / "dags"
    dags.mkdir()
    install_stubs(dags)
    for other in ("blob_sweep", "journal_checkpoint", "job_recovery"):
        (dags / f"lockgate_{other}.py").unlink()
    environment = {
        "LOCKGATE_HOME": str(root / "home"),
        "LOCKGATE_BROKER_URL": f"redis://:{SECRET}@127.0.0.1:1/7",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "LOCKGATE_TRIGGER_SOURCES": json.dumps([str(root / "in")]),
        "LOCKGATE_TRIGGER_DESTINATIONS": json.dumps([str(root / "lake")]),
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",
        "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
    }
    roles = {"ada": "admin", "tess": "user", "vera": "viewer"}
    with running_airflow(root, dags, environment, roles=roles) as services:
        yield replace(services, user=("tess", "tess"))


def form(root: Path, **given: Any) -> dict[str, Any]:
    source = str(root / "in" / "orders.json")
    return {"source": source, "source_format": "json", "destination": str(root / "lake" / "a"), **given}


ATTACKS: dict[str, tuple[dict[str, Any], str]] = {
    "Airflow's passwords as source": (
        {"source": "{root}/passwords.json"},
        "passwords.json' is not allowed in a form: LOCKGATE_TRIGGER_SOURCES",
    ),
    "an AWS secret as column": (
        {"columns": ["reflect('java.lang.System', 'getenv', 'AWS_SECRET_ACCESS_KEY') as secret"]},
        "reflect is not allowed in a form",
    ),
}


def test_a_user_with_trigger_rights_does_not_get_the_rights_of_the_worker(
    airflow: Services, root: Path
) -> None:
    runs = {}
    for name, (given, _) in ATTACKS.items():
        text = json.dumps(form(root, **given))
        runs[name] = airflow.trigger("dataset_commit", json.loads(text.replace("{root}", str(root))))

    for name, (_, refusal) in ATTACKS.items():
        assert airflow.ended_as("dataset_commit", runs[name]) == "failed", name
        log = airflow.whole_log("dataset_commit", runs[name], "write")
        assert refusal in log, f"{name}: {log}"
        assert SECRET not in log, name
    assert list(visible_files(open_store(str(root / "lake" / "a")))) == []
    assert list((root / "home" / "staging").rglob("part-*")) == []


def test_a_viewer_cannot_trigger_and_a_stranger_sees_nothing(airflow: Services, root: Path) -> None:
    viewer = replace(airflow, user=("vera", "vera"))
    assert viewer.call("GET", "dags/dataset_commit")["dag_id"] == "dataset_commit"
    with pytest.raises(AssertionError, match="403"):
        viewer.call("POST", "dags/dataset_commit/dagRuns", {"logical_date": None, "conf": form(root)})
    with pytest.raises(Exception, match="401"):
        replace(airflow, user=("tess", "guessed")).call("GET", "dags")


def lockgate_connection(**changed: Any) -> dict[str, Any]:
    """Return a connection of Lockgate's type, as its form sends it."""
    extra = {"broker_url": "redis://127.0.0.1:9/7", "broker_password": SECRET, **changed}
    return {"connection_id": "typed", "conn_type": "lockgate", "extra": json.dumps(extra), "password": SECRET}


@pytest.mark.parametrize("user", ["tess", "vera"])
def test_who_may_not_see_connections_cannot_test_one(airflow: Services, user: str) -> None:
    other = replace(airflow, user=(user, user))
    for path in ("connections/test", "connections"):
        with pytest.raises(AssertionError, match="403"):
            other.call("POST", path, lockgate_connection())
    with pytest.raises(AssertionError, match="403"):
        other.call("GET", "connections/typed")
