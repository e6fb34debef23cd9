"""What must start fast loads no engine."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest

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


@pytest.mark.parametrize("statement", ["from lockgate import open_job", "import lockgate.workers"])
def test_an_entrance_loads_no_engine(statement: str) -> None:
    script = f"import sys; {statement}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert ENGINES & set(loaded.stdout.split()) == set()


def test_a_journal_in_sqlite_loads_no_part_for_postgresql() -> None:
    script = "import sys, lockgate.storage_core.journal; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert {"psycopg", "sqlalchemy.dialects.postgresql"} & set(loaded.stdout.split()) == set()
