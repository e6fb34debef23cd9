"""Airflow's DAG processor can parse the stubs of `lockgate dags install`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lockgate.operators.dag_files import PREFIX, dag_names, install_stubs

pytestmark = [pytest.mark.soak, pytest.mark.integration]

PARSE = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(sys.argv[1], safe_mode=True)
print(json.dumps({
    "files": {dag_id: dag.fileloc for dag_id, dag in bag.dags.items()},
    "tasks": {dag_id: len(dag.tasks) for dag_id, dag in bag.dags.items()},
    "errors": bag.import_errors,
}))
"""


def test_airflow_finds_every_dag_in_its_stub(tmp_path: Path) -> None:
    folder = tmp_path / "dags"
    folder.mkdir()
    install_stubs(folder)

    parsed = subprocess.run(
        [sys.executable, "-c", PARSE, str(folder)],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
        env={
            **os.environ,
            "AIRFLOW_HOME": str(tmp_path / "airflow"),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH")])),
        },
    ).stdout
    found = json.loads(parsed.splitlines()[-1])

    assert found["errors"] == {}
    assert found["files"] == {name: str(folder / f"{PREFIX}{name}.py") for name in dag_names()}
    assert min(found["tasks"].values()) >= 1
