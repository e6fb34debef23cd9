"""`@task.lockgate` and `lockgate_connection`: a user's own task reaches its connections and its job."""

from __future__ import annotations

import json
import runpy
from collections import defaultdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowFailException

from lockgate.operators import JobCommitOperator, JobSetupOperator, example_dags, lockgate_connection
from lockgate.storage_core.commit.destination.manifest import read_manifest
from lockgate.storage_core.journal.process_journal import journal_url
from lockgate.storage_core.settings import load_settings
from tests.support.airflow.connections import connect, forget_credentials, run
from tests.support.airflow.task_run import OutletEvent, TaskRun

EXAMPLES = Path(example_dags.__file__).parent


@pytest.fixture(autouse=True)
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let Airflow's connection alone name the journal; return its URL."""
    forget_credentials(tmp_path, monkeypatch)
    url = f"sqlite:///{tmp_path / 'of-the-connection.db'}"
    connect(monkeypatch, "lockgate_default", conn_type="lockgate", extra={"journal_url": url})
    monkeypatch.setenv("LOCKGATE_TRIGGER_DESTINATIONS", json.dumps([str(tmp_path / "lake")]))
    return url


def called(operator: Any, **context: Any) -> Any:
    """Run a task as Airflow does, after its templates are rendered."""
    context = {**TaskRun().context(), **context}
    operator.pre_execute(context)
    return operator.execute(context)


def example(name: str, task_id: str, *given: Any, **named: Any) -> Any:
    """Return a task of an example, with arguments in place of the values of other tasks."""
    found = runpy.run_path(str(EXAMPLES / f"{name}.py"))["dag"].task_dict[task_id]
    if found.is_mapped:
        found = found.unmap({"op_kwargs": named})
    found.op_args, found.op_kwargs = given, named
    return found


class Try(TaskRun):
    try_number = 1


def test_the_pandas_example_writes_with_the_connections_alone(tmp_path: Path) -> None:
    lake = str(tmp_path / "lake")
    handle, _ = run(JobSetupOperator, destination=lake, committer="magic")

    called(example("pandas_only", "write", handle), ti=Try())
    receipt, _ = run(JobCommitOperator, job=handle)

    assert (receipt["files"], receipt["rows"]) == (1, 3)
    assert not (tmp_path / "home" / "journal.db").exists()


def test_the_year_example_freezes_its_months_and_writes_one_with_the_connections_alone(
    tmp_path: Path,
) -> None:
    handle, _ = run(JobSetupOperator, destination=str(tmp_path / "lake"), committer="magic")

    months = called(example("year_backfill", "months", handle, 2025))
    for month in months:
        called(example("year_backfill", "write_month", job=handle, month=month), ti=Try())
    receipt, _ = run(JobCommitOperator, job=handle)

    assert (receipt["files"], receipt["rows"]) == (12, 365)
    assert not (tmp_path / "home" / "journal.db").exists()


def test_the_example_that_an_asset_starts_reads_with_the_connections_alone(tmp_path: Path) -> None:
    lake = str(tmp_path / "lake")
    handle, _ = run(JobSetupOperator, destination=lake, committer="magic")
    called(example("pandas_only", "write", handle), ti=Try())
    receipt, _ = run(JobCommitOperator, job=handle)
    read = example("asset_scheduled", "read")

    event = OutletEvent(extra={**receipt, "destination": lake})

    assert called(read, inlet_events=defaultdict(lambda: [event])) == {"turn": 1, "rows": 3, "files": 1}
    assert not (tmp_path / "home" / "journal.db").exists()


def test_a_function_of_the_decorator_has_the_settings_of_its_connections_and_no_other_function_has(
    journal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, "other", conn_type="lockgate", extra={"journal_url": "postgresql://db/of-the-other"})

    def url() -> str:
        return journal_url(load_settings())

    with DAG("a"):
        tasks = [
            task.lockgate(url)(),
            task.lockgate(lockgate_conn_id="other")(url)(),
            task(url)(),
        ]

    found = [called(one.operator) for one in tasks]
    assert found[:2] == [journal, "postgresql://db/of-the-other"]
    assert found[2] not in found[:2]


def test_a_block_has_the_settings_of_a_connection(journal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, "jobs", conn_type="lockgate", extra={"journal_url": "postgresql://db/jobs"})

    with lockgate_connection("jobs"):
        assert load_settings().journal_url == "postgresql://db/jobs"
    with lockgate_connection():
        assert load_settings().journal_url == journal
    assert load_settings().journal_url is None


def test_a_restricted_function_does_not_get_a_job_at_a_destination_that_is_not_allowed(
    tmp_path: Path,
) -> None:
    handle, _ = run(JobSetupOperator, destination=str(tmp_path / "elsewhere"), committer="magic")

    with DAG("a", default_args={"restricted": True}):

        @task.lockgate
        def write(job: Any) -> None:
            job.abort("it was handed over")

        operator = write(handle).operator
    with pytest.raises(AirflowFailException, match="LOCKGATE_TRIGGER_DESTINATIONS"):
        called(operator)


def test_what_is_no_handle_is_refused_with_what_to_pass() -> None:
    with DAG("a"):

        @task.lockgate
        def write(job: Any) -> None: ...

        operator = write({"destination": "s3://lake"}).operator

    with pytest.raises(AirflowFailException, match=r"job=setup\.output"):
        called(operator)


def test_the_button_of_such_a_task_leads_to_its_job(tmp_path: Path) -> None:
    handle, _ = run(JobSetupOperator, destination=str(tmp_path / "lake"), committer="magic")
    ti = Try()

    called(example("pandas_only", "write", handle), ti=ti)

    [address] = ti.pushed.values()
    assert quote(handle["job_id"]) in address
    assert read_manifest(str(tmp_path / "lake")).turn == 0
