"""The DAG files parse fast, import nothing heavy and have the structure that the design requires."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lockgate.operators.dag_files import dag_names, dags_dir

pytestmark = pytest.mark.slow

HEAVY = ("pyspark", "great_expectations", "boto3", "botocore", "pandas", "pyarrow", "celery", "numpy")

ROUNDS = 5
"""How often each file is parsed, each time in a new process that has Airflow's modules only."""

PARSE = """
import datetime, json, os, runpy, sys, time
import airflow.sdk
from airflow.sdk import DAG, Asset, AssetAlias, BaseOperator, Param
import airflow.sdk.definitions.mappedoperator, airflow.sdk.exceptions
Asset("s3://bucket/key")  # Airflow asks every provider for handlers of URIs: Amazon's imports boto3
for schedule in ("@daily", datetime.timedelta(minutes=5), [Asset("a")]):
    DAG("airflows-own", schedule=schedule)
airflows = set(sys.modules)
files, heavy = map(json.loads, sys.argv[1:])
for file in files:
    child = os.fork()
    if child == 0:
        break
    if os.waitpid(child, 0)[1] != 0:
        sys.exit(f"{file} does not parse")
else:
    sys.exit()
began_s = time.process_time()
module = runpy.run_path(file)
seconds = time.process_time() - began_s
dag = module["dag"]
print(json.dumps({
    "seconds": seconds,
    "heavy": [name for name in heavy if name in sys.modules and name not in airflows],
    "dag_id": dag.dag_id,
    "params": {name: dag.params.get_param(name).schema for name in dag.params},
    "given": {name: dag.params.get_param(name).resolve(suppress_exception=True) for name in dag.params},
    "upstream": {task.task_id: sorted(task.upstream_task_ids) for task in dag.tasks},
    "setups": [task.task_id for task in dag.tasks if task.is_setup],
    "teardowns": [task.task_id for task in dag.tasks if task.is_teardown],
    "mapped": [task.task_id for task in dag.tasks if task.is_mapped],
    "schedule": str(dag.schedule),
}))
"""


@pytest.fixture(scope="module")
def parsed() -> dict[str, Any]:
    """Parse each DAG file in a fork of a process that has imported Airflow, like Airflow's DAG processor."""
    files = [dags_dir() / f"{name}.py" for name in dag_names()]
    found = parse(*files * ROUNDS)
    rounds = [found[n * len(files) : (n + 1) * len(files)] for n in range(ROUNDS)]
    return {
        file.stem: {**dags[0], "seconds": min(dag["seconds"] for dag in dags)}
        for file, *dags in zip(files, *rounds, strict=True)
    }


def parse(*files: Path) -> list[dict[str, Any]]:
    command = [sys.executable, "-c", PARSE, json.dumps([str(file) for file in files]), json.dumps(HEAVY)]
    # Installed modules have byte code: from the second round on, it exists.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    output = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=400, env=environment
    ).stdout
    return [json.loads(line) for line in output.splitlines() if line.startswith('{"seconds"')]


def test_there_are_seven_dags_named_like_their_files(parsed: dict[str, Any]) -> None:
    names = (
        "blob_sweep",
        "dataset_commit",
        "job_recovery",
        "journal_checkpoint",
        "lease_recovery",
        "upload_sweep",
        "volume_verify",
    )
    assert {stem: dag["dag_id"] for stem, dag in parsed.items()} == {name: name for name in names}


def test_dag_files_cost_little_beyond_airflows_own_import(parsed: dict[str, Any]) -> None:
    """Each takes at most 0.1 s of CPU in the best of its rounds: other processes slow down some of them."""
    assert {stem: dag["seconds"] for stem, dag in parsed.items() if dag["seconds"] > 0.1} == {}


def test_dag_files_import_no_store_client_no_spark_and_no_audit_library(parsed: dict[str, Any]) -> None:
    assert [(stem, name) for stem, dag in parsed.items() for name in dag["heavy"]] == []


def test_the_main_job_runs_from_set_up_to_commit_and_its_teardown_aborts(parsed: dict[str, Any]) -> None:
    dag = parsed["dataset_commit"]

    assert dag["upstream"] == {
        "libraries": [],
        "setup": ["libraries"],
        "write": ["setup"],
        "commit_tasks": ["write"],
        "audit": ["commit_tasks", "write"],
        "commit": ["audit", "write"],
        "abort": ["commit", "setup"],
    }
    assert sorted(dag["setups"]) == ["libraries", "setup"]
    assert (dag["teardowns"], dag["mapped"]) == (["abort"], ["commit_tasks"])


def test_every_param_of_the_main_jobs_form_describes_its_values(parsed: dict[str, Any]) -> None:
    params = parsed["dataset_commit"]["params"]

    assert set(params) >= {"source", "destination", "mode", "partition_by", "format", "suite"}
    assert params["mode"]["enum"] == ["append", "replace", "fail"]
    assert [
        name for name, schema in params.items() if not schema.get("type") or not schema.get("title")
    ] == []


def test_the_form_requires_only_the_source_and_the_destination(
    parsed: dict[str, Any],
) -> None:
    dag = parsed["dataset_commit"]

    # Airflow's form refuses an empty string in a field that is not nullable.
    empty = [name for name, value in dag["given"].items() if value in (None, "", [], {})]
    assert [name for name in empty if "null" not in dag["params"][name]["type"]] == ["source", "destination"]


def test_the_form_shows_required_params_without_opening_a_section(parsed: dict[str, Any]) -> None:
    params = parsed["dataset_commit"]["params"]

    open_at_once = [name for name, schema in params.items() if "section" not in schema]
    assert open_at_once == ["source", "source_format", "destination", "mode", "description"]


def test_recovery_runs_every_five_minutes_the_sweep_every_hour_and_journal_maintenance_every_day(
    parsed: dict[str, Any],
) -> None:
    assert parsed["job_recovery"]["schedule"] == "0:05:00"
    assert parsed["upload_sweep"]["schedule"] == "@hourly"
    assert parsed["journal_checkpoint"]["schedule"] == "@daily"


def test_blobs_are_swept_every_retention_interval(
    parsed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert parsed["blob_sweep"]["schedule"] == "0:30:00"
    monkeypatch.setenv("LOCKGATE_RETENTION_INTERVAL_S", "60")

    (dag,) = parse(dags_dir() / "blob_sweep.py")
    assert dag["schedule"] == "0:01:00"


def test_the_example_in_the_documentation_parses(tmp_path: Path) -> None:
    guide = (dags_dir().resolve().parent / "docs" / "guides" / "airflow.md").read_text()
    example = tmp_path / "sales.py"
    example.write_text(guide.split("```python\n", 1)[1].split("```", 1)[0])

    [dag] = parse(example)

    assert (dag["dag_id"], dag["teardowns"]) == ("sales", ["abort"])
    # For an Asset with an s3:// URI, Airflow imports its Amazon provider, which imports boto3.
    assert set(dag["heavy"]) <= {"boto3", "botocore"}


def test_dag_files_hold_no_logic() -> None:
    for file in dags_dir().glob("*.py"):
        source = file.read_text()
        assert not [word for word in ("def ", "if ", "for ", "try:", "lambda") if f"\n{word}" in source], file
