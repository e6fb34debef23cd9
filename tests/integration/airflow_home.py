"""A private Airflow and a Celery worker for whole DAG runs, started once a module."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lockgate.operators.demo.airflow_home import AirflowHome
from lockgate.operators.demo.worker import running_broker, running_worker
from lockgate.storage_core.settings import Settings


@dataclass(frozen=True)
class Airflow:
    """What a test needs to run DAGs.

    Attributes:
        home: Executes them, each run in a process of its own.
        root: For sources and destinations.
        settings: That the runs and the worker see.
    """

    home: AirflowHome
    root: Path
    settings: Settings


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    """An Airflow with our DAGs, an embedded broker and one worker."""
    root = tmp_path_factory.mktemp("airflow")
    environment = {"LOCKGATE_HOME": str(root / "home")}
    settings = Settings(home=root / "home")
    home = AirflowHome(root / "airflow", environment)
    home.create()
    with running_broker(settings), running_worker(root / "worker.log", environment):
        yield Airflow(home, root, settings)
