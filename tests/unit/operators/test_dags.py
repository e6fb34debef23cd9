"""The DAG files and the examples parse fast, import nothing heavy and have the structure of the design."""

from __future__ import annotations

import re
import runpy
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lockgate.operators import JobSetupOperator, example_dags
from lockgate.operators.blobs import sweep_interval
from lockgate.operators.dag_files import dag_names, dags_dir
from tests.support.airflow.preloaded import answer_of

pytestmark = pytest.mark.slow

HEAVY = ("pyspark", "great_expectations", "boto3", "botocore", "pandas", "pyarrow", "celery", "numpy")

ROUNDS = 3
"""How often each DAG file is parsed, each time in a new process that has Airflow's modules only."""

PARSE = """
import runpy, time
began_s = time.process_time()
dag = runpy.run_path({file!r})["dag"]
seconds = time.process_time() - began_s
answer({{
    "seconds": seconds,
    "heavy": [name for name in {heavy} if name in sys.modules and name not in airflows],
    "dag_id": dag.dag_id,
    "params": {{name: dag.params.get_param(name).schema for name in dag.params}},
    "given": {{name: dag.params.get_param(name).resolve(suppress_exception=True) for name in dag.params}},
    "upstream": {{task.task_id: sorted(task.upstream_task_ids) for task in dag.tasks}},
    "setups": [task.task_id for task in dag.tasks if task.is_setup],
    "teardowns": [task.task_id for task in dag.tasks if task.is_teardown],
    "mapped": [task.task_id for task in dag.tasks if task.is_mapped],
    "schedule": str(dag.schedule),
}})
"""

FOLDER = Path(example_dags.__file__).parent
EXAMPLES = sorted(file for file in FOLDER.glob("*.py") if file.stem != "__init__")
GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "airflow.md"
NEEDS_A_LOGICAL_DATE = re.compile(
    r"{{[^}]*\b(ds|ts|ds_nodash|ts_nodash|logical_date|data_interval_\w+)\b(?<!\| ds)"
)


def parsed_file(file: Path) -> dict[str, Any]:
    return dict(answer_of(PARSE.format(file=str(file), heavy=HEAVY)))


@pytest.fixture(scope="module")
def parsed() -> dict[str, Any]:
    """Parse each DAG file some times; return what the first time found, and the shortest time."""
    files = [dags_dir() / f"{name}.py" for name in dag_names()]
    rounds = [[parsed_file(file) for file in files] for _ in range(ROUNDS)]
    return {
        file.stem: {**dags[0], "seconds": min(dag["seconds"] for dag in dags)}
        for file, *dags in zip(files, *rounds, strict=True)
    }


def test_there_are_nine_dags_named_like_their_files(parsed: dict[str, Any]) -> None:
    names = (
        *(
            "blob_sweep",
            "dataset_commit",
            "job_recovery",
            "journal_checkpoint",
            "lease_recovery",
            "retention",
        ),
        *("turn_revert", "upload_sweep", "volume_upkeep"),
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


def test_the_form_of_the_main_job_describes_its_params_and_requires_source_and_destination(
    parsed: dict[str, Any],
) -> None:
    params, given = parsed["dataset_commit"]["params"], parsed["dataset_commit"]["given"]

    assert [name for name, schema in params.items() if not (schema.get("type") and schema.get("title"))] == []
    # Airflow's form refuses an empty string in a field that is not nullable.
    empty = [name for name, value in given.items() if value in (None, "", [], {})]
    assert [name for name in empty if "null" not in params[name]["type"]] == ["source", "destination"]
    open_at_once = [name for name, schema in params.items() if "section" not in schema]
    assert open_at_once == ["source", "source_format", "destination", "mode", "description"]


def test_each_maintenance_dag_has_its_schedule(
    parsed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert parsed["job_recovery"]["schedule"] == "0:05:00"
    assert parsed["upload_sweep"]["schedule"] == "@hourly"
    assert parsed["journal_checkpoint"]["schedule"] == "@daily"
    assert parsed["blob_sweep"]["schedule"] == "0:30:00"
    monkeypatch.setenv("LOCKGATE_RETENTION_INTERVAL_S", "60")
    assert sweep_interval() == timedelta(minutes=1)


def test_dag_files_hold_no_logic() -> None:
    for file in dags_dir().glob("*.py"):
        source = file.read_text()
        assert not [word for word in ("def ", "if ", "for ", "try:", "lambda") if f"\n{word}" in source], file


def test_the_example_in_the_documentation_parses(tmp_path: Path) -> None:
    example = tmp_path / "sales.py"
    example.write_text(GUIDE.read_text().split("## In your own DAGs\n\n```python\n")[1].split("```", 1)[0])

    dag = parsed_file(example)

    assert (dag["dag_id"], dag["teardowns"]) == ("sales", ["abort"])
    # For an Asset with an s3:// URI, Airflow imports its Amazon provider, which imports boto3.
    assert set(dag["heavy"]) <= {"boto3", "botocore"}


def test_each_example_parses_and_imports_nothing_heavy() -> None:
    parsed = {file.stem: parsed_file(file) for file in EXAMPLES}

    assert [*parsed] == [
        *("asset_scheduled", "nightly_append", "pandas_only", "partition_overwrite", "year_backfill")
    ]
    assert {stem: dag["dag_id"] for stem, dag in parsed.items()} == {stem: stem for stem in parsed}
    assert {stem: dag["heavy"] for stem, dag in parsed.items() if dag["heavy"]} == {}
    assert [stem for stem, dag in parsed.items() if dag["teardowns"] != ["abort"]] == ["asset_scheduled"]


@pytest.mark.parametrize("file", [*EXAMPLES, GUIDE], ids=lambda file: file.stem)
def test_an_example_needs_no_logical_date_and_gives_spark_an_s3_file_system_for_its_source(
    file: Path,
) -> None:
    text = file.read_text()

    assert NEEDS_A_LOGICAL_DATE.findall(text.replace("| ds }}", "}}")) == []
    for dag in re.findall(r"^def \w+\(spark.*?^    setup >>", text, re.MULTILINE | re.DOTALL):
        assert ("s3a://" in dag) <= ("reads_s3=True" in dag)


@pytest.mark.parametrize(
    "file", [file for file in EXAMPLES if file.stem != "asset_scheduled"], ids=lambda file: file.stem
)
def test_an_example_whose_form_names_a_destination_checks_it(file: Path) -> None:
    dag = runpy.run_path(str(file))["dag"]
    setup = next(task for task in dag.tasks if isinstance(task, JobSetupOperator))

    assert setup.restricted == ("destination" in dag.params)
