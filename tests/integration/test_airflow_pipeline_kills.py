"""Kill each process of a running Airflow while `dataset_commit` runs: the rows appear once, nothing is left.

Each run meets several kills, and ends with the rows at its destination once, one event of its Asset, no
process, no staged file, no file that the manifest does not name, and no job that needs recovery.
A request to S3 that the proxy holds is the point at which a process is killed. The request is then sent on,
as one that was already on its way. Services are started again, as a supervisor does.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import get_args

import pytest

from tests.conftest import Summarise
from tests.support.airflow.pipeline import (
    JARS,
    ROWS,
    Executor,
    Pipeline,
    Way,
    parent,
    processes,
    running_pipeline,
)
from tests.support.airflow.services import sure
from tests.support.postgres import UNSYNCED, primary
from tests.support.s3 import real_server
from tests.support.s3.holding_proxy import Held, holding_proxy

pytestmark = [
    pytest.mark.integration,
    pytest.mark.fault,
    pytest.mark.soak,
    pytest.mark.requires("s3-server"),
    pytest.mark.requires("postgres"),
]

PATIENCE_S = 600.0
TRIES = 3
"""Of each task of `dataset_commit`."""
UPLOAD = r"PUT [^ ]*{data}[^ ]*[?&]partNumber="
COMPLETE = r"POST [^ ]*{data}[^ ]*[?&]uploadId="


with_jars = pytest.mark.skipif(
    not JARS.exists(), reason="no hadoop-aws: `make s3a-jars` fetches 690 MB, once"
)
PLACES = [
    pytest.param((executor, via), id=f"{executor}-{via}", marks=[] if via == "staged" else [with_jars])
    for executor, via in product(get_args(Executor), get_args(Way))
    if (executor, via) != ("CeleryExecutor", "cluster")
]


@pytest.fixture(scope="module", params=PLACES)
def pipeline(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """Yield all services on one executor, for one way of the rows; S3 is behind a proxy for every process."""
    database_root = tempfile.mkdtemp(prefix="lockgate-postgres-", dir="/var/tmp")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in real_server.environment().items():
            patch.setenv(name, value)
        try:
            with (
                holding_proxy(os.environ["AWS_ENDPOINT_URL"]) as s3,
                primary(Path(database_root), **UNSYNCED, max_connections="200") as database,
            ):
                patch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
                root = tmp_path_factory.mktemp("kills")
                with running_pipeline(root, *request.param, database, s3) as running:
                    yield running
        finally:
            shutil.rmtree(database_root, ignore_errors=True)


@contextmanager
def held(pipeline: Pipeline, pattern: str, destination: str) -> Iterator[Held]:
    """Run a block when a request for a data file has arrived in the proxy, which then sends it on."""
    key = destination.partition("://")[2]
    with pipeline.s3.holding(pattern.format(data=f"{key}/part(=|%3D)")) as waiting:
        waiting.wait(PATIENCE_S)
        yield waiting


def held_in_spark(pipeline: Pipeline, name: str) -> tuple[Path, dict[str, object]]:
    """Return a new folder, and the params of a run whose Spark child waits until it is killed."""
    folder = pipeline.root / f"held-{name}"
    folder.mkdir()
    transform = "tests.support.airflow.held_frame:held_frame"
    return folder, {"columns": ["*", f"'{folder}' as place"], "transform": transform}


def waiting_child(folder: Path) -> int:
    """Return the waiting Spark child of a run; after it none will wait."""

    def child() -> int | None:
        file = folder / "child"
        return int(file.read_text()) if file.exists() else None

    found = sure(child, "Spark did not reach the transformation")
    (folder / "let-go").touch()
    return found


def check(pipeline: Pipeline, destination: str) -> None:
    """Check the end of a run: rows once, the Asset's event once, nothing left."""
    assert pipeline.visible_rows(destination) == list(range(ROWS))
    assert [event["rows"] for event in pipeline.asset_events(destination)] == [ROWS]
    sure(lambda: not pipeline.left(destination) or None, f"left: {pipeline.left(destination)}")


def test_the_spark_child_the_lockgate_worker_and_the_task_runner_are_killed(pipeline: Pipeline) -> None:
    folder, hold = held_in_spark(pipeline, "python")
    destination, run_id = pipeline.trigger("runner", **hold)
    child = waiting_child(folder)
    assert parent(child) == pipeline.runner(run_id, "write")
    pipeline.kill_process(child)
    with held(pipeline, UPLOAD, destination):
        if pipeline.via != "staged":  # Spark's own writer uploads
            pipeline.kill_process(pipeline.runner(run_id, "write"))
        else:
            pipeline.restart("lockgate-worker", tasks=True)
    with held(pipeline, COMPLETE, destination):
        pipeline.kill_process(pipeline.runner(run_id, "commit"))
    assert pipeline.ended_as(run_id) == "success"
    assert min(pipeline.tries(run_id, "write"), pipeline.tries(run_id, "commit")) > 1
    check(pipeline, destination)


def test_the_jvm_the_triggerer_and_the_worker_of_airflow_are_killed(pipeline: Pipeline) -> None:
    """With Celery the worker's machine dies; with the local executor the process that supervises the task."""
    folder, hold = held_in_spark(pipeline, "java")
    destination, run_id = pipeline.trigger("worker", **hold)
    pipeline.kill_process(jvm_of(waiting_child(folder)))
    with held(pipeline, UPLOAD, destination):
        pipeline.restart("triggerer", tasks=True)
    with held(pipeline, COMPLETE, destination):
        runner = pipeline.runner(run_id, "commit")
        if pipeline.executor == "CeleryExecutor":
            pipeline.restart("airflow-worker", tasks=True)
        else:
            pipeline.kill_process(parent(runner))
    assert pipeline.ended_as(run_id) == "success"
    assert min(pipeline.tries(run_id, "write"), pipeline.tries(run_id, "commit")) > 1
    check(pipeline, destination)


def test_all_executors_of_the_cluster_are_killed_while_they_upload(pipeline: Pipeline) -> None:
    if pipeline.via != "cluster":
        pytest.skip("Spark runs in the child of the task")
    destination, run_id = pipeline.trigger("executors")
    with held(pipeline, UPLOAD, destination):
        for pid in pipeline.executors():
            pipeline.kill_process(pid)
    assert pipeline.ended_as(run_id) == "success"
    check(pipeline, destination)


def test_the_scheduler_is_killed_alone_and_with_its_tasks(pipeline: Pipeline) -> None:
    destination, run_id = pipeline.trigger("scheduler")
    with held(pipeline, UPLOAD, destination):
        pipeline.restart("scheduler")
    with held(pipeline, COMPLETE, destination):
        pipeline.restart("scheduler", tasks=True)
    assert pipeline.ended_as(run_id) == "success"
    check(pipeline, destination)


def test_the_api_server_is_killed_and_the_database_crashes(pipeline: Pipeline) -> None:
    """The database is Airflow's and the journal's: it crashes and is started again."""
    destination, run_id = pipeline.trigger("database")
    with held(pipeline, UPLOAD, destination):
        pipeline.restart("api-server")
    with held(pipeline, COMPLETE, destination):
        pipeline.crash_database()
    assert pipeline.ended_as(run_id) == "success"
    check(pipeline, destination)


def test_every_try_of_the_commit_and_the_worker_that_recovers_its_job_are_killed(
    pipeline: Pipeline,
) -> None:
    destination, run_id = pipeline.trigger("recovery")
    with held(pipeline, COMPLETE, destination) as waiting:
        for _ in range(TRIES):
            waiting.wait(PATIENCE_S)
            pipeline.kill_process(pipeline.runner(run_id, "commit"))
            waiting.drop()
        assert pipeline.ended_as(run_id) == "failed"
        assert pipeline.visible_rows(destination) == []
        recovery = pipeline.services.trigger("job_recovery", {})
        waiting.wait(PATIENCE_S)
        pipeline.restart("lockgate-worker", tasks=True)
    assert pipeline.services.ended_as("job_recovery", recovery) == "success"
    check(pipeline, destination)


def test_a_sweep_then_leaves_no_upload_of_these_runs(pipeline: Pipeline, summarise: Summarise) -> None:
    run_id = pipeline.services.trigger("upload_sweep", {"destinations": ",".join(pipeline.destinations)})
    assert pipeline.services.ended_as("upload_sweep", run_id) == "success"
    assert pipeline.open_uploads() == []
    summarise(
        f"{pipeline.executor}, {pipeline.via}: {pipeline.kills} kills in {len(pipeline.destinations)} runs"
    )


def jvm_of(child: int) -> int:
    """Return the JVM of a Spark child."""
    return next(pid for pid, line in processes().items() if "java" in line and child in ancestors(pid))


def ancestors(pid: int) -> list[int]:
    found = []
    with suppress(OSError):
        while pid > 1:
            pid = parent(pid)
            found.append(pid)
    return found
