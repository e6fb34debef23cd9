"""Tests of complete runs of the main job in Airflow, with a real worker and real Spark."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import pytest
from deltalake import DeltaTable
from pyiceberg.table import StaticTable

from examples.flights.processes.airflow_home import DagRun
from lockgate.storage_core.commit.destination.manifest import read_manifest
from lockgate.storage_core.commit.job_summary import list_jobs
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.stores import open_store
from tests.support.airflow.home import Airflow, airflow

__all__ = ["airflow"]

pytestmark = [pytest.mark.soak, pytest.mark.integration, pytest.mark.timeout(900)]

MANY_ROWS = {
    "name": "many",
    "expectations": [{"type": "expect_table_row_count_to_be_between", "kwargs": {"min_value": 1000}}],
}


def run(airflow: Airflow, name: str, **conf: Any) -> tuple[str, DagRun]:
    """Write ten rows in two partitions; return the destination and the run."""
    source = airflow.root / f"{name}.json"
    source.write_text("".join(json.dumps({"row": n, "half": n % 2}) + "\n" for n in range(10)))
    destination = str(airflow.root / name)
    conf = {"source": str(source), "source_format": "json", "destination": destination, **conf}
    transport = {"type": "file", "log_file_path": str(airflow.root / f"{name}.lineage"), "append": True}
    environment = {"AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport)}
    conf = {"partition_by": ["half"], **conf}
    return destination, airflow.home.run("dataset_commit", conf, environment=environment)


def lineage(airflow: Airflow, name: str, task_id: str) -> dict[str, Any]:
    """Return the last OpenLineage event of a task that has inputs or outputs."""
    events = map(json.loads, (airflow.root / f"{name}.lineage").read_text().splitlines())
    found = [event for event in events if event["job"]["name"] == f"dataset_commit.{task_id}"]
    return [event for event in found if event["inputs"] or event["outputs"]][-1]


def dataset(found: dict[str, Any]) -> tuple[str, str]:
    return found["namespace"], found["name"]


def states(run: DagRun) -> Mapping[str, str]:
    return {task.task_id: task.state for task in run.tasks.values()}


def visible(destination: str) -> list[str]:
    pages = open_store(destination).pages()
    return [info.key for page in pages for info in page if not layout.is_hidden(info.key)]


def test_wrong_data_is_never_visible_and_the_teardown_aborts_the_job(airflow: Airflow) -> None:
    destination, ended = run(airflow, "wrong", suite=MANY_ROWS)

    assert states(ended) == {
        "libraries": "success",
        "setup": "success",
        "write": "success",
        "commit_tasks": "success",
        "audit": "failed",
        "commit": "upstream_failed",
        "abort": "success",
    }
    assert (ended.state, ended.returncode) == ("failed", 1)
    [job] = list_jobs(destination, settings=airflow.settings)
    assert job.phase is JobPhase.FAILED
    assert visible(destination) == []
    assert [upload for page in open_store(destination).upload_pages() for upload in page] == []
    assert list((airflow.root / "home" / "staging").iterdir()) == []

    event = lineage(airflow, "wrong", "write")
    assert event["eventType"] == "COMPLETE"
    assert [dataset(found) for found in event["inputs"]] == [("file", str(airflow.root / "wrong.json"))]
    [output] = event["outputs"]
    assert dataset(output) == ("file", destination)
    fields = [(field["name"], field["type"]) for field in output["facets"]["schema"]["fields"]]
    assert fields == [("row", "int64"), ("half", "string")]


def test_workers_complete_a_run_in_another_format_and_emit_an_asset_event(airflow: Airflow) -> None:
    destination, ended = run(airflow, "right", format="json", complete_by="workers", columns=["row", "half"])

    assert set(states(ended).values()) == {"success"}, ended.log.read_text()[-5000:]
    assert ended.tasks["abort"].returned == ["committed"]
    manifest = read_manifest(destination, settings=airflow.settings)
    assert (manifest.rows, manifest.turn) == (10, 1)
    assert sorted(visible(destination)) == sorted(manifest.files)
    [(uri, extra)] = asset_events(airflow)
    assert uri == open_store(destination).url
    assert extra["rows"] == 10
    assert extra["job_id"] == ended.tasks["commit"].returned[0]["job_id"]

    [output] = lineage(airflow, "right", "commit")["outputs"]
    assert dataset(output) == ("file", destination)
    statistics = output["outputFacets"]["outputStatistics"]
    assert (statistics["rowCount"], statistics["fileCount"]) == (10, len(manifest.files))
    assert statistics["size"] == ended.tasks["commit"].returned[0]["size"]


def test_the_tables_of_the_form_are_read_by_readers_of_delta_and_iceberg(airflow: Airflow) -> None:
    destination, ended = run(airflow, "tables", tables=["delta", "iceberg"])

    assert ended.state == "success", ended.log.read_text()[-5000:]
    assert ended.tasks["commit"].returned[0]["tables_behind"] == ""
    expected = sorted((n, str(n % 2)) for n in range(10))
    delta = DeltaTable(destination).to_pyarrow_table()
    iceberg = StaticTable.from_metadata(f"{destination}/_iceberg/metadata/v1.metadata.json").scan().to_arrow()
    for found in (delta, iceberg):
        assert sorted((row["row"], row["half"]) for row in found.to_pylist()) == expected


def asset_events(airflow: Airflow) -> list[tuple[str, dict[str, Any]]]:
    with closing(sqlite3.connect(airflow.home.path / "airflow.db")) as database:
        rows = database.execute(
            "select asset.uri, asset_event.extra from asset_event join asset on asset.id = asset_id"
        )
        return [(uri, json.loads(extra)) for uri, extra in rows]
