"""Description of Lockgate for Airflow's list of providers."""

from __future__ import annotations

from importlib.metadata import metadata
from typing import Any


def get_provider_info() -> dict[str, Any]:
    """Return the provider's description, for Airflow's entry point `apache_airflow_provider`."""
    installed = metadata("lockgate")
    return {
        "package-name": installed["Name"],
        "name": "Lockgate",
        "description": installed["Summary"],
        "versions": [installed["Version"]],
    }
