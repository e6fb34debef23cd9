"""What must start fast loads no engine."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

ENGINES: Final = frozenset(
    {
        "airflow",
        "asyncio",
        "awscrt",
        "boto3",
        "botocore",
        "celery",
        "fastapi",
        "fsspec",
        "importlib.metadata",
        "kombu",
        "opentelemetry",
        "pandas",
        "prometheus_client",
        "psycopg",
        "pyarrow",
        "pydantic",
        "pyspark",
        "redis",
        "rich",
        "sqlalchemy",
        "tenacity",
        "tornado",
        "typer",
    }
)


def loaded_by(statement: str) -> set[str]:
    """Return the modules that a new process has after a statement."""
    command = [sys.executable, "-c", f"import sys; {statement}; print(*sys.modules)"]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


def test_open_job_loads_no_engine() -> None:
    assert ENGINES & loaded_by("from lockgate import open_job") == set()


def test_a_journal_in_sqlite_loads_no_part_for_postgresql() -> None:
    assert {"psycopg", "sqlalchemy.dialects.postgresql"} & loaded_by(
        "import lockgate.storage_core.journal"
    ) == set()
