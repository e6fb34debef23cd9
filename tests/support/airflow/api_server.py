"""Airflow's API server in this process, with the plugin mounted, and users of its simple auth manager."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from starlette.testclient import TestClient

from lockgate.operators.dag_files import dags_dir

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.routing import BaseRoute

ROLES = ("viewer", "user", "admin")


@cache
def api_server() -> FastAPI:
    """Return the API server's application; its first call in a process takes 8 s of CPU time."""
    os.environ.setdefault("AIRFLOW__API_AUTH__JWT_SECRET", "a secret of a test " * 4)
    os.environ.setdefault("AIRFLOW__CORE__LOAD_EXAMPLES", "False")
    from airflow import settings
    from airflow.api_fastapi.app import create_app
    from airflow.models import import_all_models
    from airflow.models.base import Base
    from airflow.utils.db import synchronize_log_template

    import_all_models()
    Base.metadata.create_all(settings.engine)
    synchronize_log_template()
    return create_app(apps="core")


def client(role: str | None) -> TestClient:
    """Return a client with the token of a user of a role, whose name is the role; None: anonymous."""
    app = api_server()
    headers = {}
    if role is not None:
        from airflow.api_fastapi.app import get_auth_manager
        from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

        token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username=role, role=role))
        headers = {"authorization": f"Bearer {token}"}
    return TestClient(app, headers=headers, raise_server_exceptions=False)


def plugin_routes() -> list[BaseRoute]:
    """Return the routes of the application that the plugin has mounted."""
    (mount,) = [route for route in api_server().routes if getattr(route, "path", "") == "/lockgate"]
    routes: list[BaseRoute] = mount.app.routes  # type: ignore[attr-defined]
    return routes


def store_dag(name: str) -> None:
    """Make Airflow know a DAG of `dags/`, not paused."""
    api_server()
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    from airflow.models import DagModel
    from airflow.utils.session import create_session

    with create_session() as session:
        DagBundlesManager().sync_bundles_to_db(session=session)
    bag = DagBag(dag_folder=str(dags_dir() / f"{name}.py"), bundle_name="dags-folder")
    assert bag.import_errors == {}
    with create_session() as session:
        sync_bag_to_db(bag, "dags-folder", None, session=session)
    with create_session() as session:
        dag = DagModel.get_current(name, session=session)
        assert dag is not None
        dag.is_paused = False


def changed_dag(name: str, **columns: Any) -> None:
    """Change columns of a DAG in Airflow's database, such as `is_paused`."""
    from airflow.models import DagModel
    from airflow.utils.session import create_session

    with create_session() as session:
        dag = DagModel.get_current(name, session=session)
        assert dag is not None
        for column, value in columns.items():
            setattr(dag, column, value)


def dag_run(dag_id: str, run_id: str) -> Mapping[str, Any]:
    """Return what Airflow's API tells a viewer about a run."""
    answer = client("viewer").get(f"/api/v2/dags/{dag_id}/dagRuns/{run_id}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())
