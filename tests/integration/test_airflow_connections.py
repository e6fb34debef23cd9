"""Airflow's own connections, from its database, as its tasks and its form use them."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from examples.flights.processes.airflow_home import AirflowHome
from lockgate import open_job
from lockgate.storage_core.settings import load_settings
from tests.support.airflow.home import create
from tests.support.s3.real_server import environment, new_url

pytestmark = [pytest.mark.soak, pytest.mark.integration, pytest.mark.requires("s3-server")]


def add_connections(home: AirflowHome, connections: dict[str, Any]) -> None:
    file = home.path / "connections.json"
    file.write_text(json.dumps(connections))
    subprocess.run(
        [sys.executable, "-m", "airflow", "connections", "import", str(file)],
        env={**os.environ, **home._settings(), **home.environment},
        check=True,
        capture_output=True,
        timeout=300,
    )


def test_a_scheduled_dag_reaches_s3_by_connections_in_the_database_and_shows_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, destination = environment(), new_url()
    journal = f"sqlite:///{tmp_path / 'journal.db'}"
    with monkeypatch.context() as patch:
        for name, value in server.items():
            patch.setenv(name, value)
        job = open_job(destination, "abandoned", settings=load_settings(journal_url=journal))
        job.attempt("t").open("a.txt").write(b"never completed")
        job.abort("for the sweep")
    home = AirflowHome(
        tmp_path / "airflow",
        {"LOCKGATE_HOME": str(tmp_path / "home"), "LOCKGATE_DESTINATIONS": destination},
    )
    create(home)
    lake = {
        "conn_type": "aws",
        "login": server["AWS_ACCESS_KEY_ID"],
        "password": server["AWS_SECRET_ACCESS_KEY"],
        "extra": {"endpoint_url": server["AWS_ENDPOINT_URL"], "region_name": "us-east-1"},
    }
    lockgate = {"conn_type": "lockgate", "extra": {"journal_url": journal, "aws_conn_id": "lake"}}
    add_connections(home, {"lake": lake, "lockgate_default": lockgate})

    run = home.run("upload_sweep", {})

    assert run.state == "success", run.log.read_text()
    assert not (tmp_path / "home" / "journal.db").exists()
    secret = server["AWS_SECRET_ACCESS_KEY"]
    with closing(sqlite3.connect(home.path / "airflow.db")) as database:
        database.execute("delete from connection")  # where it belongs
        dump = "\n".join(database.iterdump())
    assert destination in dump
    assert secret not in dump
    logs = [path.read_text(errors="replace") for path in home.path.rglob("*.log")]
    assert logs
    assert [log for log in logs if secret in log] == []
