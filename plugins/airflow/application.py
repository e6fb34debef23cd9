"""The application as Airflow's API server mounts it; Airflow's auth manager decides who may look and act.

Airflow asks nothing before it calls a plugin's route, so every route depends on `may_read`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag, requires_access_view
from airflow.configuration import conf
from airflow.models import DagRun
from airflow.utils.session import create_session
from fastapi import FastAPI, HTTPException
from starlette.requests import Request
from starlette.staticfiles import StaticFiles

from lockgate.plugins.airflow.actions import DAGS, DagRuns, stopped, warning
from lockgate.plugins.airflow.default_connection import DefaultConnection
from lockgate.plugins.web.access import ActionName, Host, Run
from lockgate.plugins.web.application import web_app

STATIC: Final = Path(__file__).parent / "static"

_MAY_VIEW: Final = requires_access_view(AccessView.JOBS)
_MAY_TRIGGER: Final[Mapping[ActionName, Callable[..., Any]]] = {
    action: requires_access_dag("POST", DagAccessEntity.RUN, dag_id) for action, dag_id in DAGS.items()
}


def application() -> FastAPI:
    """Return the pages and the API, with the card and the icons of Airflow's own pages beside them."""
    app = web_app(airflow_host())
    # Constant files of this package: they are public, like Airflow's own.
    app.mount("/airflow", StaticFiles(directory=STATIC), name="airflow")
    return app


def airflow_host() -> Host:
    """Return Airflow as the host of the pages."""
    return Host(
        may_read=_may_read,
        may_act=_MAY_TRIGGER,
        offers=_offers,
        user=_user,
        actions=DagRuns(run_href),
        run_href=run_href,
        run_users=run_users,
        theme="airflow",
        settings=DefaultConnection(),
        settings_from="the connection lockgate_default, or LOCKGATE_JOURNAL_URL of the API server",
        stopped=partial(stopped, dag_href=dag_href),
        warning=warning,
        own_origin=_own_origin,
    )


def _own_origin() -> str:
    address = urlsplit(conf.get("api", "base_url", fallback="") or "")
    return f"{address.scheme}://{address.netloc}" if address.netloc else ""


def dag_href(dag_id: str) -> str:
    """Return the address of a DAG in Airflow, where it can be unpaused."""
    prefix = urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")
    return f"{prefix}/dags/{quote(dag_id, safe='')}"


def run_href(dag_id: str, run_id: str, task_id: str | None, map_index: int) -> str:
    """Return the address of a DAG run or a task instance in Airflow."""
    href = f"{dag_href(dag_id)}/runs/{quote(run_id, safe='')}"
    if task_id is not None:
        href += f"/tasks/{quote(task_id, safe='')}"
    return f"{href}/mapped/{map_index}" if task_id is not None and map_index >= 0 else href


def run_users(runs: Collection[Run]) -> dict[Run, str]:
    """Return the users who triggered DAG runs, as Airflow's database has them."""
    with create_session() as session:
        found = DagRun.find(
            dag_id=sorted({dag_id for dag_id, _ in runs}),
            run_id=sorted({run_id for _, run_id in runs}),
            session=session,
        )
        users = {(run.dag_id, run.run_id): run.triggering_user_name for run in found}
    return {run: user for run in runs if (user := users.get(run))}


def _may_read(request: Request, user: GetUserDep) -> None:
    _MAY_VIEW(request, user)
    request.state.lockgate_user = user  # checked: `_offers` and `_user` are called in the route


def _offers(request: Request) -> frozenset[ActionName]:
    return frozenset(action for action, check in _MAY_TRIGGER.items() if _passes(check, request))


def _passes(check: Callable[..., Any], request: Request) -> bool:
    try:
        check(request, request.state.lockgate_user)
    except HTTPException:
        return False
    return True


def _user(request: Request) -> str:
    name: str = request.state.lockgate_user.get_name()
    return name
