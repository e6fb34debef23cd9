"""The application inside Airflow: who may call each route, and which DAG run an action starts.

Airflow asks nothing before it calls a plugin's route, so a route that is forgotten is open to everybody: a
new one is added to `ROUTES`. These tests share one file, and Airflow is imported by the first one that runs,
because its API server takes 8 s of CPU time to start.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pytest
from starlette.routing import BaseRoute, Mount, Route
from starlette.testclient import TestClient

from lockgate.plugins import airflow
from lockgate.plugins.web.access import ActionName, ActionRequest
from lockgate.plugins.web.api.jobs import job_counts
from lockgate.plugins.web.request_reads import Reads
from lockgate.storage_core.errors import ConflictError, InvalidInputError
from tests.support.airflow import api_server as server
from tests.support.airflow.api_server import ROLES, client, plugin_routes

pytestmark = pytest.mark.slow

READ: Final = {None: 401, "viewer": "yes", "user": "yes", "admin": "yes"}
ACT: Final = {None: 401, "viewer": 403, "user": "yes", "admin": "yes"}
PUBLIC: Final = dict.fromkeys((None, *ROLES), "yes")
"""Constant files of the package."""

ROUTES: Final[dict[str, dict[str | None, int | str]]] = {
    "GET /api/v1/blobs/jobs": READ,
    "GET /api/v1/blobs/jobs/{blob_job}": READ,
    "GET /api/v1/destinations": READ,
    "GET /api/v1/destinations/detail": READ,
    "GET /api/v1/destinations/log": READ,
    "GET /api/v1/jobs/{job_id}": READ,
    "GET /api/v1/jobs/{job_id}/attempts": READ,
    "GET /api/v1/jobs/{job_id}/files": READ,
    "GET /api/v1/jobs/{job_id}/log": READ,
    "GET /api/v1/jobs/{job_id}/plan": READ,
    "GET /api/v1/charts/{name}": READ,
    "GET /api/v1/jobs": READ,
    "GET /api/v1/jobs/counts": READ,
    "GET /api/v1/runs": READ,
    "GET /api/v1/journal": READ,
    "GET /api/v1/journal/checkpoints": READ,
    "GET /api/v1/journal/observers": READ,
    "GET /api/v1/openapi.json": READ,
    "GET /api/v1/uploads": READ,
    "GET /api/v1/uploads/owners": READ,
    "GET /": READ,
    "GET /blobs": READ,
    "GET /destination": READ,
    "GET /destinations": READ,
    "GET /job": READ,
    "GET /jobs": READ,
    "GET /journal": READ,
    "GET /run": READ,
    "GET /static/{name}": READ,
    "GET /uploads": READ,
    "POST /api/v1/actions/abort": ACT,
    "POST /api/v1/actions/leave-safe-mode": ACT,
    "POST /api/v1/actions/recover": ACT,
    "POST /api/v1/actions/revert": ACT,
    "POST /api/v1/actions/sweep-blobs": ACT,
    "POST /api/v1/actions/sweep-uploads": ACT,
    "MOUNT /airflow": PUBLIC,
}
"""Each route, and who may call it: `yes`, or the status of the refusal."""

ACTION: Final = {"destination": "s3://nowhere/x", "job_id": "none-g1", "turn": 1, "reason": "operator"}
PUBLIC_FILES: Final = {"/airflow": Path(airflow.__file__).parent / "static"}
SAMPLES: Final = {"name": "rows"}
"""Values of parameters in paths; others are `x`."""


@pytest.fixture(scope="module")
def clients() -> dict[str | None, TestClient]:
    return {role: client(role) for role in (None, *ROLES)}


def listed(routes: list[BaseRoute], prefix: str = "") -> Iterator[str]:
    for route in routes:
        if isinstance(route, Mount):
            # A mount of plain files has no routes of its own.
            yield from (
                listed(route.routes, prefix + route.path) if route.routes else [f"MOUNT {prefix}{route.path}"]
            )
        elif isinstance(route, Route):
            yield from (f"{method} {prefix}{route.path}" for method in sorted(route.methods - {"HEAD"}))
        else:
            yield f"{type(route).__name__} {prefix}{getattr(route, 'path', '')}"


def call(caller: TestClient, route: str, **more: Any) -> int:
    method, _, path = route.partition(" ")
    if method == "MOUNT":
        method, path = (
            "GET",
            f"{path}/{next(PUBLIC_FILES[path].rglob('*.*')).relative_to(PUBLIC_FILES[path])}",
        )
    path = re.sub(r"{(\w+)[^}]*}", lambda found: SAMPLES.get(found[1], "x"), path)
    body = {"json": ACTION} if method == "POST" and "data" not in more else {}
    answer = caller.request(method, f"/lockgate{path}", follow_redirects=False, **body, **more)
    return int(answer.status_code)


def verdict(status: int) -> int | str:
    return status if status in {401, 403, 405} or status >= 500 else "yes"


def test_the_table_has_every_route_and_no_other() -> None:
    found = set(listed(plugin_routes()))

    assert sorted(found - ROUTES.keys()) == [], (
        "routes that are not in ROUTES of tests/unit/plugins/test_in_airflow.py: add each, with READ "
        "(pages and reads) or ACT (what changes something)"
    )
    assert sorted(ROUTES.keys() - found) == [], "these routes are gone: remove them from ROUTES"


@pytest.mark.parametrize("route", ROUTES)
def test_a_route_answers_only_those_who_may_call_it(
    clients: dict[str | None, TestClient], route: str
) -> None:
    answered = {role: verdict(call(caller, route)) for role, caller in clients.items()}

    assert answered == ROUTES[route]


@pytest.mark.parametrize("route", [route for route in ROUTES if ROUTES[route] is ACT])
@pytest.mark.parametrize(
    "more",
    [
        {"headers": {"sec-fetch-site": "cross-site"}},
        {"headers": {"sec-fetch-site": "same-site"}},
        {"headers": {"origin": "https://elsewhere.example"}},
        {"headers": {"origin": "https://elsewhere.example", "x-forwarded-host": "elsewhere.example"}},
        {"data": {"dry_run": "true"}},
    ],
    ids=["another site", "another host of the site", "another origin", "a forwarded host", "a form"],
)
def test_a_post_of_another_site_is_refused(
    clients: dict[str | None, TestClient], route: str, more: dict[str, Any]
) -> None:
    assert call(clients["admin"], route, **more) == (415 if "data" in more else 403)


@pytest.mark.parametrize("headers", [{"sec-fetch-site": "same-origin"}, {"origin": "http://testserver"}])
def test_a_post_of_the_pages_themselves_is_taken(
    clients: dict[str | None, TestClient], headers: dict[str, str]
) -> None:
    assert call(clients["user"], "POST /api/v1/actions/recover", headers=headers) == 404  # no such job


def test_a_post_to_the_configured_address_is_taken_behind_a_proxy_that_changes_the_host(
    clients: dict[str | None, TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://flows.example/team")

    def posted(origin: str) -> int:
        return call(clients["user"], "POST /api/v1/actions/recover", headers={"origin": origin})

    assert posted("https://flows.example") == 404  # no such job
    assert posted("http://flows.example") == 403
    assert posted("https://flows.example.evil") == 403
    assert posted("null") == 403


def test_writes_are_only_posts_to_actions() -> None:
    writes = {route for route in ROUTES if not route.startswith(("GET ", "MOUNT "))}

    assert {route for route in writes if ROUTES[route] is not ACT} == set()


def test_public_files_are_scripts_styles_fonts_and_images_of_the_package() -> None:
    files = [file for folder in PUBLIC_FILES.values() for file in Path(folder).rglob("*") if file.is_file()]

    assert {file.suffix for file in files} <= {".js", ".css", ".svg", ".png", ".woff2", ".ico", ".txt"}


@pytest.fixture(scope="module")
def dags() -> None:
    for name in ("job_recovery", "turn_revert", "upload_sweep", "blob_sweep", "journal_checkpoint"):
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
        (
            "revert",
            {"destination": "s3://lake", "turn": 3},
            "turn_revert",
            {"destination": "s3://lake", "turn": "3"},
        ),
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
@pytest.mark.usefixtures("dags")
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
    ("columns", "remedy"),
    [
        ({"is_paused": True}, "unpause"),
        ({"has_import_errors": True}, "import errors"),
        ({"is_stale": True}, "lockgate dags install"),
    ],
)
@pytest.mark.usefixtures("dags")
def test_a_dag_that_cannot_run_is_a_problem_that_names_the_remedy(
    clients: dict[str | None, TestClient], columns: dict[str, bool], remedy: str
) -> None:
    server.changed_dag("blob_sweep", **columns)
    try:
        with pytest.raises(ConflictError, match=f"blob_sweep.*{remedy}.*nothing was started"):
            start("sweep-blobs")
        dry_run = clients["user"].post("/lockgate/api/v1/actions/sweep-blobs", json={"dry_run": True})
        assert (dry_run.status_code, remedy in dry_run.json()["detail"]) == (409, True)
    finally:
        server.changed_dag("blob_sweep", **dict.fromkeys(columns, False))


@pytest.mark.usefixtures("dags")
def test_a_pressed_button_starts_a_run_in_the_name_of_the_logged_in_user(
    clients: dict[str | None, TestClient],
) -> None:
    body = {"dry_run": False}

    started = clients["user"].post("/lockgate/api/v1/actions/sweep-blobs", json=body).json()

    _, _, dag_id, _, run_id = started["href"].split("/")
    assert server.dag_run(dag_id, run_id)["triggering_user_name"] == "user"


@pytest.mark.usefixtures("dags")
def test_the_user_of_a_run_is_known_and_none_is_made_up() -> None:
    from lockgate.plugins.airflow.application import airflow_host

    host = airflow_host()
    assert host.actions is not None
    started = host.actions.start("sweep-blobs", ActionRequest(dry_run=False), "tess")
    run_id = str(started.href).rpartition("/")[2]
    mine, other = ("blob_sweep", unquote(run_id)), ("blob_sweep", "scheduled__2026-11-18")

    assert host.run_users({mine, other}) == {mine: "tess"}


def test_the_pages_read_the_journal_of_the_connection_in_airflows_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.api_server()
    from airflow.models import Connection
    from airflow.utils.session import create_session

    from lockgate.plugins.airflow.application import airflow_host

    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")  # as in the API server's own process
    url = f"sqlite:///{tmp_path / 'of-the-connection.db'}"
    made = Connection(
        conn_id="lockgate_default", conn_type="lockgate", extra=json.dumps({"journal_url": url})
    )
    with create_session() as session:
        session.add(made)
    try:
        host = airflow_host()
        counts = job_counts(Reads(host.settings), host)
    finally:
        with create_session() as session:
            session.delete(session.merge(made))

    assert counts.journal == url
    assert "lockgate_default" in counts.empty_why


@pytest.mark.parametrize(
    ("action", "given"),
    [
        ("leave-safe-mode", {}),
        ("recover", {**JOB, "job_id": "../x"}),
    ],
)
@pytest.mark.usefixtures("dags")
def test_an_incomplete_or_refused_request_starts_nothing(action: ActionName, given: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError, match="nothing was started"):
        start(action, **given)
