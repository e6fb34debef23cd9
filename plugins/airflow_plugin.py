"""The class that Airflow loads as the plugin."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin


class LockgatePlugin(AirflowPlugin):
    """An entry in Airflow's list of plugins; pages about jobs, and an API, come in a later release."""

    name = "lockgate"
