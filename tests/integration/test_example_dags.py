"""The example without Spark runs in Airflow from its first task to its commit."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from examples import dags
from examples.flights.processes.airflow_home import AirflowHome
from lockgate import read_manifest
from tests.support.airflow.home import create

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


def test_the_pandas_example_publishes_its_file_after_its_audit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKGATE_HOME", str(tmp_path / "home"))
    lake = tmp_path / "lake"
    monkeypatch.setenv("LOCKGATE_TRIGGER_DESTINATIONS", json.dumps([str(lake)]))
    folder = {"AIRFLOW__CORE__DAGS_FOLDER": str(Path(dags.__file__).parent)}
    home = AirflowHome(tmp_path / "airflow", folder)
    create(home)

    run = home.run("pandas_only", {"destination": str(lake)})

    assert {task.task_id: task.state for task in run.tasks.values()} == dict.fromkeys(
        ("setup", "write", "audit", "commit", "abort"), "success"
    ), run.log.read_text()
    [file] = read_manifest(str(lake)).files
    assert pd.read_parquet(lake / file)["order_id"].tolist() == [1, 2, 3]
