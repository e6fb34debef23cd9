"""Where the pages appear in Airflow. Plain data, because every component of Airflow imports it.

Addresses are relative: Airflow's page has a `<base>`, so they hold behind a path of `[api] base_url`, too.
"""

from __future__ import annotations

from typing import Any, Final

PREFIX: Final = "/lockgate"
"""Where the application is mounted."""
_STATIC: Final = "lockgate/airflow"


def _view(name: str, page: str, url_route: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "href": f"lockgate/{page}",
        "url_route": url_route,
        "icon": f"{_STATIC}/light.svg",
        "icon_dark_mode": f"{_STATIC}/dark.svg",
        **more,
    }


_RUN: Final = "run?dag_id={DAG_ID}&run_id={RUN_ID}"

EXTERNAL_VIEWS: Final[list[dict[str, Any]]] = [
    # One button in the navigation bar; the others are in its menu of plugins, below "Lockgate".
    _view("Lockgate", "jobs", "lockgate", destination="nav", nav_top_level=True),
    *(
        _view(page.capitalize(), page, f"lockgate-{page}", destination="nav", category="Lockgate")
        for page in ("jobs", "destinations", "uploads", "blobs", "journal")
    ),
    _view("Lockgate", _RUN, "lockgate-run", destination="dag_run"),
    _view(
        "Lockgate",
        f"{_RUN}&task_id={{TASK_ID}}&map_index={{MAP_INDEX}}",
        "lockgate-task",
        destination="task_instance",
    ),
]

REACT_APPS: Final[list[dict[str, Any]]] = [
    # Airflow loads the bundle and shows the function that it has stored in the global variable of this name.
    {
        "name": "LockgateCard",
        "bundle_url": f"{_STATIC}/dashboard.js",
        "url_route": "lockgate-card",
        "destination": "dashboard",
    }
]
