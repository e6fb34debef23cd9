"""Airflow's connections in a test: from the environment, in a process without other credentials."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.airflow.task_run import TaskRun


def forget_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the process no credentials: neither in its environment nor in the files of its user."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "AIRFLOW_CONN_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    monkeypatch.setenv("LOCKGATE_HOME", str(tmp_path / "home"))


def connect(patch: pytest.MonkeyPatch, conn_id: str, **fields: Any) -> None:
    """Add a connection."""
    patch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(fields))


def run(operator_class: type[Any], **arguments: Any) -> tuple[Any, TaskRun]:
    """Execute an operator; return its value and its task instance."""
    task = TaskRun()
    return operator_class(task_id="t", **arguments).execute(task.context()), task
