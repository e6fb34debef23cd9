"""The example DAGs run in Airflow from their first tasks to their commits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from examples.flights.processes.airflow_home import AirflowHome
from examples.flights.processes.worker import running_broker, running_worker
from lockgate import read_manifest
from lockgate.operators import example_dags
from lockgate.storage_core.commit.job_summary import list_jobs
from lockgate.storage_core.settings import Settings, load_settings
from tests.support.airflow.home import create
from tests.support.airflow.services import Services, quoted, running_airflow, sure
from tests.support.postgres import Server

pytestmark = [pytest.mark.soak, pytest.mark.integration, pytest.mark.timeout(1_800)]

EXAMPLES = Path(example_dags.__file__).parent


def test_the_pandas_example_publishes_its_file_after_its_audit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKGATE_HOME", str(tmp_path / "home"))
    lake = tmp_path / "lake"
    monkeypatch.setenv("LOCKGATE_TRIGGER_DESTINATIONS", json.dumps([str(lake)]))
    home = AirflowHome(tmp_path / "airflow", {"AIRFLOW__CORE__DAGS_FOLDER": str(EXAMPLES)})
    create(home)

    run = home.run("pandas_only", {"destination": str(lake)})

    assert {task.task_id: task.state for task in run.tasks.values()} == dict.fromkeys(
        ("setup", "write", "audit", "commit", "abort"), "success"
    ), run.log.read_text()
    [file] = read_manifest(str(lake)).files
    assert pd.read_parquet(lake / file)["order_id"].tolist() == [1, 2, 3]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("examples")


@pytest.fixture(scope="module")
def settings(root: Path) -> Settings:
    return load_settings(home=root / "home")


@pytest.fixture(scope="module")
def airflow(root: Path, settings: Settings, postgres: Server) -> Iterator[Services]:
    """Run the examples from and to folders: a user, too, copies them and changes their constants."""
    folder = root / "dags"
    folder.mkdir()
    for example in EXAMPLES.glob("*.py"):
        text = example.read_text().replace("s3://lake", str(root / "lake"))
        text = text.replace("s3a://raw", str(root / "raw")).replace("reads_s3=True,", "")
        (folder / example.name).write_text(text)
    environment = {
        "LOCKGATE_HOME": str(settings.home),
        "LOCKGATE_TRIGGER_DESTINATIONS": json.dumps([str(root / "lake")]),
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "120",  # a busy machine; by default 5 s
    }
    database = postgres.new_database("airflow_examples")
    with (
        running_broker(settings),
        running_worker(root / "worker.log", {"LOCKGATE_HOME": str(settings.home)}),
        running_airflow(root, folder, environment, database=database) as services,
    ):
        yield services


def run(airflow: Services, dag_id: str, conf: dict[str, Any]) -> str:
    """Run a DAG until it succeeds; return the run's id."""
    run_id = airflow.trigger(dag_id, conf)
    assert airflow.ended_as(dag_id, run_id) == "success"
    return run_id


def frame(destination: Path, settings: Settings) -> pd.DataFrame:
    """Return the rows that a reader of the log sees, with their partitions' columns."""
    [ended] = {job.needs_recovery for job in list_jobs(str(destination), settings=settings)}
    assert not ended
    parts = []
    for file in read_manifest(str(destination), settings=settings).files:
        parts.append(pd.read_parquet(destination / file, partitioning=None))
        for name, _, value in (folder.partition("=") for folder in Path(file).parts[:-1]):
            parts[-1][name] = value
    return pd.concat(parts, ignore_index=True)


@pytest.mark.soak
@pytest.mark.requires("postgres")
def test_the_asset_of_the_pandas_example_starts_the_one_that_is_scheduled_by_it(
    airflow: Services, root: Path
) -> None:
    airflow.call("PATCH", "dags/asset_scheduled?update_mask=is_paused", {"is_paused": False})
    destination = str(root / "lake" / "orders-of-pandas")
    run(airflow, "pandas_only", {"destination": destination})

    def started() -> str | None:
        runs = airflow.call("GET", "dags/asset_scheduled/dagRuns")["dag_runs"]
        return str(runs[0]["dag_run_id"]) if runs else None

    run_id = sure(started, "the Asset started no run")
    assert airflow.ended_as("asset_scheduled", run_id) == "success"
    path = f"dags/asset_scheduled/dagRuns/{quoted(run_id)}/taskInstances/read/xcomEntries/return_value"
    assert airflow.call("GET", path)["value"] == {"turn": 1, "rows": 3, "files": 1}


@pytest.mark.soak
@pytest.mark.requires("postgres")
def test_a_year_of_mapped_tasks_appears_at_once_and_replaces_only_itself(
    airflow: Services, root: Path, settings: Settings
) -> None:
    destination = root / "lake" / "daily-totals"
    for turn, year in enumerate((2023, 2024, 2024), start=1):
        run_id = run(airflow, "year_backfill", {"year": year, "destination": str(destination)})
        mapped = airflow.call(
            "GET", f"dags/year_backfill/dagRuns/{quoted(run_id)}/taskInstances/write_month/listMapped"
        )
        assert mapped["total_entries"] == 12
        assert read_manifest(str(destination), settings=settings).turn == turn

    days = frame(destination, settings)
    assert days["month"].nunique() == 24
    assert days["day"].dt.year.value_counts().to_dict() == {2023: 365, 2024: 366}
    assert days["day"].is_unique


@pytest.mark.soak
@pytest.mark.requires("postgres")
def test_the_nightly_example_appends_the_day_of_its_run(
    airflow: Services, root: Path, settings: Settings
) -> None:
    orders = [{"order_id": number, "total": 1.5} for number in (1, 2, 3, 3)]
    # The run's own day, and the next one in case that midnight passes before it begins.
    for day in pd.date_range(pd.Timestamp.now("UTC").date(), periods=2).strftime("%Y-%m-%d"):
        (root / "raw" / "orders" / day).mkdir(parents=True)
        text = "".join(json.dumps(order) + "\n" for order in orders)
        (root / "raw" / "orders" / day / "orders.json").write_text(text)
    run(airflow, "nightly_append", {})
    # Its schedule may have started another run, because it is not paused any more.
    airflow.call("PATCH", "dags/nightly_append?update_mask=is_paused", {"is_paused": True})
    runs = [run["dag_run_id"] for run in airflow.call("GET", "dags/nightly_append/dagRuns")["dag_runs"]]
    assert {airflow.ended_as("nightly_append", run_id) for run_id in runs} == {"success"}

    rows = frame(root / "lake" / "orders", settings)
    assert sorted(rows["order_id"]) == sorted([1, 2, 3] * len(runs))
    events = airflow.call("GET", "assets/events?limit=1000")["asset_events"]
    assert [event["extra"]["rows"] for event in events if event["name"] == "orders"] == [3] * len(runs)


@pytest.mark.soak
@pytest.mark.requires("postgres")
def test_the_partition_example_replaces_the_days_that_it_computes_and_no_others(
    airflow: Services, root: Path, settings: Settings
) -> None:
    corrections = root / "raw" / "corrections"
    corrections.mkdir(parents=True)
    days = [f"2026-01-0{number}" for number in range(1, 6)]

    def correct(amount: int) -> None:
        pd.DataFrame({"day": days, "amount": amount}).to_parquet(corrections / "days.parquet", index=False)

    correct(1)
    run(airflow, "partition_overwrite", {"first": days[0], "last": days[4]})
    correct(2)
    run(airflow, "partition_overwrite", {"first": days[1], "last": days[2]})

    rows = frame(root / "lake" / "orders-by-day", settings)
    assert dict(sorted(zip(rows["day"], rows["amount"], strict=True))) == dict(
        zip(days, (1, 2, 2, 1, 1), strict=True)
    )
    assert len(rows) == 5
