"""On a Spark cluster, executors get the libraries of a job, and write each row once if they die."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import psutil
import pytest

from lockgate import read_manifest
from lockgate.operators.spark_process.process import SparkChild, SparkWork
from lockgate.storage_core.blobs.open_blobs import open_blobs
from lockgate.storage_core.commit.job_summary import list_jobs
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.stores import UploadInfo
from tests.support.blobs.libraries import native_wheel, upload, wheel
from tests.support.soak import soak_only
from tests.support.spark.accidents import FIRST_TRY, SECOND_TRY, Accident, await_that
from tests.support.spark.cluster import CLUSTER_CONFIG, HOSTS, standalone_cluster
from tests.support.spark.driver import DAYS, Driver, How, spark_driver
from tests.support.spark.libraries import Lines, applied

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.soak, pytest.mark.integration, pytest.mark.fault]

Listing = Callable[[], list[str]]
Uploads = Callable[[], list[UploadInfo]]

ROWS = 100_000
SMALL_FILES = {"maxRecordsPerFile": "2000"}
"""So that a task has uploads open long before its last row: one begins when a part is full, or a file."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a cluster whose two hosts have a core each."""
    with standalone_cluster(tmp_path_factory.mktemp("cluster")) as master:
        yield master


@pytest.fixture(scope="module")
def cluster_driver(cluster: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """Yield a driver whose tasks run on both hosts; until the end it holds all cores."""
    log = tmp_path_factory.mktemp("driver") / "driver.log"
    with spark_driver(log, master=cluster, config=CLUSTER_CONFIG) as driver:
        yield driver


def on_a_cluster(spark: SparkSession) -> list[str]:
    """Run in the child process on a cluster whose executors look like other machines to Spark."""
    rates = applied(spark, "cluster_rates", "library.RATE + row")
    native = applied(spark, "cluster_native", "library.escape('<')")
    return rates + native


def test_executors_of_a_cluster_fetch_the_libraries_from_the_driver(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKGATE_HOME", str(tmp_path / "home"))
    with open_blobs(load_settings()) as server:
        artefacts = upload(
            server,
            "sales",
            {
                "cluster_rates-1.0-py3-none-any.whl": wheel("cluster_rates", "RATE = 7"),
                "cluster_native-1.0-cp311-cp311-linux_x86_64.whl": native_wheel("cluster_native"),
            },
        )
        work = SparkWork(
            run=on_a_cluster,
            arguments={},
            master=cluster,
            config={**CLUSTER_CONFIG, "spark.speculation": "false"},
            artefacts=artefacts.handle(),
        )
        assert SparkChild(Lines()).run(work) == ["7", "8", "9", "10", *["&lt;"] * 4]


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    folder.mkdir()
    return folder


def _write(driver: Driver, how: How, destination: str, accident: Accident, notes: Path) -> list[int]:
    """Write with an accident; return the processes of the first attempt."""
    driver.ask("await_executors", count=len(HOSTS))
    driver.ask(
        "write",
        destination=destination,
        how=how,
        rows=ROWS,
        accident=[accident, destination, str(notes), DAYS],
        options=SMALL_FILES,
    )
    first_try = json.loads((notes / FIRST_TRY).read_text())
    assert len(first_try["uploads"]) >= DAYS
    return first_try["pids"]


def _ids(destination: str) -> list[int]:
    return sorted(pl.read_parquet(f"{destination}/day=*/*.parquet")["id"].to_list())


@pytest.mark.parametrize("how", [soak_only("write"), "save"])
def test_a_speculative_copy_wins_and_the_slow_attempt_leaves_nothing(
    *, how: How, cluster_driver: Driver, destination: str, notes: Path, seen: Listing, open_uploads: Uploads
) -> None:
    executor, *workers = _write(cluster_driver, how, destination, "slow", notes)

    (job,) = list_jobs(destination)
    assert job.phase is JobPhase.COMMITTED
    assert open_uploads() == []
    met = json.loads((notes / SECOND_TRY).read_text())
    assert met == [executor, *workers], "the second try was no speculative copy: the first one had ended"
    # The losing attempt may outlive its job for a moment: its later effects must stay invisible too.
    await_that(lambda: not any(map(psutil.pid_exists, workers)), "the loser's end")
    assert open_uploads() == []
    assert seen() == sorted(read_manifest(destination).files)
    assert _ids(destination) == list(range(ROWS))


@pytest.mark.parametrize("how", [soak_only("write"), "save"])
def test_a_task_is_retried_after_its_executor_was_killed_and_its_rows_arrive_once(
    *, how: How, cluster_driver: Driver, destination: str, notes: Path, seen: Listing, open_uploads: Uploads
) -> None:
    _write(cluster_driver, how, destination, "killed", notes)

    (job,) = list_jobs(destination)
    assert job.phase is JobPhase.COMMITTED
    assert open_uploads() == []
    assert json.loads((notes / SECOND_TRY).read_text()) == []
    assert seen() == sorted(read_manifest(destination).files)
    assert _ids(destination) == list(range(ROWS))
