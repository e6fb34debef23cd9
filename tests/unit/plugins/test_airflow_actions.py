"""Actions start DAG runs, recorded as those of the user who pressed the button."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote

import pytest

from lockgate.plugins.web.access import ActionName, ActionRequest
from lockgate.storage_core.errors import ConflictError, InvalidInputError, LockgateError, ObjectNotFoundError
from tests.support.airflow import api_server as server

pytestmark = pytest.mark.slow  # Airflow's API server takes 8 s of CPU time


@pytest.fixture(scope="module", autouse=True)
def dags() -> None:
    for name in ("job_recovery", "upload_sweep", "blob_sweep", "journal_checkpoint"):
        server.store_dag(name)


def start(action: ActionName, **given: Any) -> tuple[str, dict[str, Any]]:
    """Start an action as `tess`; return the DAG and what Airflow says about its run."""
    from lockgate.plugins.airflow.application import airflow_host

    host = airflow_host()
    assert host.actions is not None
    started = host.actions.start(action, ActionRequest(dry_run=False, **given), "tess")
    assert started.href is not None
    _, _, dag_id, _, run_id = started.href.split("/")
    return dag_id, dict(server.dag_run(dag_id, run_id))


JOB = {"destination": "s3://lake/sales", "job_id": "sales-g1"}


@pytest.mark.parametrize(
    ("action", "given", "dag_id", "conf"),
    [
        ("recover", JOB, "job_recovery", JOB),
        ("abort", {**JOB, "reason": "wrong day"}, "job_recovery", {**JOB, "abort_reason": "wrong day"}),
        ("abort", JOB, "job_recovery", {**JOB, "abort_reason": "by hand"}),
        ("sweep-uploads", {"destination": "s3://lake"}, "upload_sweep", {"destinations": "s3://lake"}),
        ("sweep-blobs", {}, "blob_sweep", {}),
        (
            "leave-safe-mode",
            {"reason": "operator"},
            "journal_checkpoint",
            {"leave_safe_mode": "operator"},
        ),
    ],
)
def test_an_action_starts_a_run_of_its_dag_in_the_users_name(
    action: ActionName, given: dict[str, str], dag_id: str, conf: dict[str, str]
) -> None:
    started, run = start(action, **given)

    assert started == dag_id
    assert run["conf"].items() >= conf.items()
    assert (run["state"], run["triggering_user_name"]) == ("queued", "tess")
    of_the_run = {"dag_id": dag_id, "run_id": run["dag_run_id"]}
    log = server.client("admin").get("/api/v2/eventLogs", params=of_the_run).json()
    (entry,) = log["event_logs"]
    assert (entry["event"], entry["owner"]) == ("trigger_dag_run", "tess")
    assert json.loads(entry["extra"]) == {"lockgate": action, "conf": conf}


@pytest.mark.parametrize(
    ("columns", "error", "remedy"),
    [
        ({"is_paused": True}, ConflictError, "unpause"),
        ({"has_import_errors": True}, ConflictError, "import errors"),
        ({"is_stale": True}, ObjectNotFoundError, "lockgate dags install"),
    ],
)
def test_a_dag_that_cannot_run_is_a_problem_that_names_the_remedy(
    columns: dict[str, bool], error: type[LockgateError], remedy: str
) -> None:
    server.changed_dag("blob_sweep", **columns)
    try:
        with pytest.raises(error, match=f"blob_sweep.*nothing was started.*{remedy}"):
            start("sweep-blobs")
    finally:
        server.changed_dag("blob_sweep", **dict.fromkeys(columns, False))


def test_the_user_of_a_run_is_known_and_none_is_made_up() -> None:
    from lockgate.plugins.airflow.application import airflow_host

    host = airflow_host()
    assert host.actions is not None
    started = host.actions.start("sweep-blobs", ActionRequest(dry_run=False), "tess")
    run_id = str(started.href).rpartition("/")[2]
    mine, other = ("blob_sweep", unquote(run_id)), ("blob_sweep", "scheduled__2026-11-18")

    assert host.run_users({mine, other}) == {mine: "tess"}


@pytest.mark.parametrize(
    ("action", "given"),
    [
        ("leave-safe-mode", {}),
        ("recover", {**JOB, "job_id": "../x"}),
    ],
)
def test_an_incomplete_or_refused_request_starts_nothing(action: ActionName, given: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError, match="nothing was started"):
        start(action, **given)
