"""Operators describe for OpenLineage what they read and write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk import Asset
from openlineage.client.serde import Serde
from pyarrow import parquet

from lockgate.operators import JobCommitOperator, JobSetupOperator, SparkWriteOperator
from lockgate.operators.dag_run.job_handle import attach
from lockgate.operators.dag_run.lineage import parquet_columns
from tests.support.airflow.preloaded import answer_of
from tests.support.airflow.task_run import TaskRun
from tests.support.commit.destination import World


@pytest.fixture
def handle(world: World) -> Any:
    setup = JobSetupOperator(
        task_id="setup", destination=world.url, columns=[("row", "int"), ("day", "date")]
    )
    handle = setup.execute(TaskRun().context())
    with attach(handle).attempt("task-0") as attempt, attempt.open("a.txt") as file:
        file.write(b"12345")
    return handle


def plain(datasets: Any) -> Any:
    return [Serde.to_dict(dataset) for dataset in datasets]


def test_a_commit_names_its_destination_with_rows_bytes_columns_and_turn(world: World, handle: Any) -> None:
    commit = JobCommitOperator(task_id="commit", job=handle)
    commit.execute(TaskRun(task_id="commit").context())

    [output] = plain(commit.get_openlineage_facets_on_complete(None).outputs)

    assert (output["namespace"], output["name"]) == ("file", str(world.root / "dest"))
    statistics = output["outputFacets"]["outputStatistics"]
    assert (statistics["size"], statistics["fileCount"]) == (5, 1)
    fields = [(field["name"], field["type"]) for field in output["facets"]["schema"]["fields"]]
    assert fields == [("row", "int"), ("day", "date")]
    assert output["facets"]["version"]["datasetVersion"] == "1"


def test_a_commit_that_failed_names_its_destination_without_statistics(handle: Any) -> None:
    lineage = JobCommitOperator(task_id="commit", job=handle).get_openlineage_facets_on_complete(None)
    [output] = plain(lineage.outputs)
    assert "outputFacets" not in output or not output["outputFacets"]


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("s3a://raw/sales/2026", ("s3://raw", "sales/2026")),
        ("s3://raw", ("s3://raw", "/")),
        ("/data/sales.json", ("file", "/data/sales.json")),
    ],
)
def test_a_write_names_its_source_its_inlets_and_its_destination(
    world: World, source: str, named: tuple[str, str]
) -> None:
    write = SparkWriteOperator(
        task_id="write",
        job={"destination": world.url, "job_id": "sales-g1", "job_attempt": "a"},
        python_callable="mine:rows",
        op_kwargs={"source": source},
        inlets=[Asset("rates", "s3://raw/rates")],
    )
    lineage = write.get_openlineage_facets_on_start()

    assert [(one.namespace, one.name) for one in lineage.inputs] == [("s3://raw", "rates"), named]
    assert [(one.namespace, one.name) for one in lineage.outputs] == [("file", str(world.root / "dest"))]


def test_the_columns_of_a_write_are_those_of_its_files_and_its_folders(tmp_path: Path) -> None:
    (tmp_path / "day=1").mkdir()
    table = pa.table({"row": pa.array([1], pa.int32()), "name": ["a"]})
    parquet.write_table(table, tmp_path / "day=1" / "part-0.parquet")  # type: ignore[no-untyped-call]

    found = [(column.name, column.type) for column in parquet_columns(tmp_path, ["day"])]

    assert found == [("row", "int32"), ("name", "string"), ("day", "string")]
    assert parquet_columns(tmp_path / "nowhere", ["day"]) == ()


def test_the_operators_are_imported_without_openlineage() -> None:
    assert (
        answer_of(
            "sys.modules['openlineage'] = None\n"
            "from lockgate.operators import JobCommitOperator, SparkWriteOperator\n"
            "answer('airflow.providers.openlineage.extractors' in sys.modules)\n"
        )
        is False
    )


def test_a_commit_is_described_without_its_store(handle: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The provider asks in a fork of the task's process, where a store may wait for ever for a lock."""
    commit = JobCommitOperator(task_id="commit", job=handle)
    commit.execute(TaskRun(task_id="commit").context())
    monkeypatch.setattr("lockgate.storage_core.stores.open_store", None)

    [output] = plain(commit.get_openlineage_facets_on_complete(None).outputs)

    assert output["outputFacets"]["outputStatistics"]["size"] == 5
