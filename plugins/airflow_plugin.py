"""The class that Airflow loads as the plugin.

Every component of Airflow imports this module: the scheduler, the DAG processor and each worker, too. What
only the API server needs (FastAPI, the journal) is imported when Airflow asks for `fastapi_apps`.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from lockgate.plugins.airflow.places import EXTERNAL_VIEWS, PREFIX, REACT_APPS


class LockgatePlugin(AirflowPlugin):
    """The pages: navigation, tabs of DAG runs and task instances, the card on the home page, the JSON API."""

    name = "lockgate"
    external_views = EXTERNAL_VIEWS
    react_apps = REACT_APPS

    @cached_property
    def fastapi_apps(self) -> list[Any]:  # type: ignore[override]
        """Return the application, made on the first access, which only the API server does."""
        from lockgate.plugins.airflow.application import application  # noqa: PLC0415 - see above

        return [{"name": "Lockgate", "app": application(), "url_prefix": PREFIX}]
