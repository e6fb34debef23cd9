"""A private Airflow and a Celery worker for whole DAG runs, started once a module."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from examples.flights.processes.airflow_home import AirflowHome
from examples.flights.processes.worker import running_broker, running_worker
from lockgate.storage_core.settings import Settings, load_settings


@dataclass(frozen=True)
class Airflow:
    """The environment of a test that runs DAGs.

    Attributes:
        home: Airflow home that executes them, each run in its own process.
        root: Root folder of sources and destinations.
        settings: Settings of the runs and of the worker.
    """

    home: AirflowHome
    root: Path
    settings: Settings


def create(home: AirflowHome) -> None:
    """Create a home with a database that Airflow migrates only once per process, because that takes 8 s."""
    home.path.mkdir(parents=True, exist_ok=True, mode=0o700)
    shutil.copyfile(_migrated(), home.path / "airflow.db")


@cache
def _migrated() -> Path:
    folder = tempfile.TemporaryDirectory(prefix="airflow-")
    atexit.register(folder.cleanup)
    template = AirflowHome(Path(folder.name))
    template.create()
    return template.path / "airflow.db"


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    """An Airflow with our DAGs, an embedded broker and one worker."""
    root = tmp_path_factory.mktemp("airflow")
    allowed = json.dumps([str(tmp_path_factory.getbasetemp())])
    environment = {"LOCKGATE_HOME": str(root / "home"), "LOCKGATE_TRIGGER_DESTINATIONS": allowed}
    settings = load_settings(home=root / "home")
    home = AirflowHome(root / "airflow", environment)
    create(home)
    with running_broker(settings), running_worker(root / "worker.log", environment):
        yield Airflow(home, root, settings)
