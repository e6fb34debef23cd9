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
        "task-decorators": [
            {"name": "lockgate", "class-name": "lockgate.operators.dag_run.task_decorator.lockgate_task"}
        ],
        "notifications": ["lockgate.operators.notifier.JobNotifier"],
        "connection-types": [
            {
                "connection-type": "lockgate",
                "hook-name": "Lockgate",
                "hook-class-name": "lockgate.operators.connections.LockgateHook",
                "ui-field-behaviour": {
                    "hidden-fields": ["host", "schema", "login", "port", "extra"],
                    "relabeling": {"password": "Password of the journal"},
                    "placeholders": {},
                },
                "conn-fields": {
                    "journal_url": _url("Journal", "postgresql://user@host/database"),
                    "broker_url": _url("Broker", "redis://host:6379/7"),
                    "broker_password": {
                        "label": "Password of the broker",
                        "schema": {"type": ["string", "null"], "format": "password"},
                    },
                    "blob_server_url": _url("Blob server", "https://host:port"),
                    "aws_conn_id": {
                        "label": "AWS connection for S3",
                        "description": "Name of a connection of type aws. Empty: AWS's environment.",
                        "schema": {"type": ["string", "null"]},
                    },
                },
            }
        ],
    }


def _url(label: str, example: str) -> dict[str, Any]:
    return {
        "label": label,
        "description": f"{example}. Empty: that of the environment.",
        "schema": {"type": ["string", "null"]},
    }
