"""The plugin: cheap to import everywhere, and where its pages appear."""

from __future__ import annotations

import json
import re
import subprocess
import sys

from lockgate.plugins.airflow.places import EXTERNAL_VIEWS, REACT_APPS

IMPORTED = """
import json, sys
import airflow.plugins_manager
before = set(sys.modules)
import lockgate.plugins.airflow_plugin
lockgate.plugins.airflow_plugin.LockgatePlugin()
print(json.dumps(sorted(name for name in set(sys.modules) - before if name != "lockgate")))
"""


def test_importing_the_plugin_imports_neither_the_pages_nor_the_journal() -> None:
    command = [sys.executable, "-c", IMPORTED]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout

    assert json.loads(output.splitlines()[-1]) == [
        "lockgate.plugins",
        "lockgate.plugins.airflow",
        "lockgate.plugins.airflow.places",
        "lockgate.plugins.airflow_plugin",
    ]


def test_every_place_has_a_route_of_its_own_and_relative_addresses() -> None:
    places = [*EXTERNAL_VIEWS, *REACT_APPS]
    routes = [place["url_route"] for place in places]
    addresses = [
        place[key]
        for place in places
        for key in ("href", "bundle_url", "icon", "icon_dark_mode")
        if key in place
    ]

    assert len(set(routes)) == len(routes)
    assert [address for address in addresses if not re.fullmatch(r"lockgate/[a-z]+[^:]*", address)] == []


def test_the_pages_appear_in_the_navigation_and_on_runs_task_instances_and_the_home_page() -> None:
    shown = {(place["destination"], place["name"]) for place in [*EXTERNAL_VIEWS, *REACT_APPS]}

    assert shown == {
        ("nav", "Lockgate"),
        *(("nav", name) for name in ("Jobs", "Destinations", "Uploads", "Blobs", "Journal")),
        ("dag_run", "Lockgate"),
        ("task_instance", "Lockgate"),
        ("dashboard", "LockgateCard"),
    }
