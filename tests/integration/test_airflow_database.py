"""Tests of a journal in Airflow's own PostgreSQL database, in a schema of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from lockgate.storage_core.commit.open_or_attach import open_job
from lockgate.storage_core.errors import InvalidInputError, LockgateError
from lockgate.storage_core.journal import open_journal
from lockgate.storage_core.settings import load_settings
from tests.support.postgres import Server

pytestmark = [pytest.mark.soak, pytest.mark.integration, pytest.mark.requires("postgres")]

SCHEMA = "lockgate_journal"
_databases = count(1)


@pytest.fixture
def database(postgres: Server) -> str:
    """Return the name of a new database with a schema for the journal."""
    name = f"airflow_{next(_databases)}"
    postgres.new_database(name)
    postgres.run_sql(f"CREATE SCHEMA {SCHEMA}", name)
    return name


def in_schema(server: Server, database: str, schema: str = SCHEMA) -> str:
    return f"{server.url_of(database)}?options=-csearch_path%3D{schema}"


def tables(server: Server, database: str, schema: str) -> set[str]:
    names = f"SELECT string_agg(tablename, ' ') FROM pg_tables WHERE schemaname = '{schema}'"
    return set(server.run_sql(names, database).split())


def commit_a_row(url: str, folder: Path) -> int:
    """Commit a job whose lease and registration are in the journal; return its turn."""
    settings = load_settings(home=folder / "home", journal_url=url)
    with open_job(str(folder / "lake"), "sales", settings=settings) as job:
        with job.attempt("task") as attempt, attempt.open("part.txt") as file:
            file.write(b"row")
        return job.commit().turn


def test_a_journal_has_a_schema_of_its_own_beside_tables_of_the_same_names(
    postgres: Server, database: str, tmp_path: Path
) -> None:
    postgres.run_sql("CREATE TABLE alembic_version (version_num varchar(32) NOT NULL)", database)
    postgres.run_sql("INSERT INTO alembic_version VALUES ('d2f4e1b3c5a7')", database)
    postgres.run_sql("CREATE TABLE job (id integer)", database)

    with pytest.raises(InvalidInputError, match="a database or a schema of its own"):
        open_journal(postgres.url_of(database))
    assert commit_a_row(in_schema(postgres, database), tmp_path) == 1

    assert {"entry_family", "entry", "job", "lease"} <= tables(postgres, database, SCHEMA)
    assert tables(postgres, database, "public") == {"alembic_version", "job"}
    assert postgres.run_sql("SELECT version_num FROM alembic_version", database) == "d2f4e1b3c5a7"


def test_a_schema_that_does_not_exist_is_an_error_with_its_remedy(postgres: Server, database: str) -> None:
    with pytest.raises(LockgateError, match="CREATE SCHEMA"):
        open_journal(in_schema(postgres, database, "nowhere"))


@pytest.mark.soak
def test_airflow_migrates_its_database_and_leaves_the_journal_alone(
    postgres: Server, database: str, tmp_path: Path
) -> None:
    airflow(postgres, database, tmp_path, "db", "migrate")
    of_airflow = tables(postgres, database, "public")
    url = in_schema(postgres, database)
    assert commit_a_row(url, tmp_path / "first") == 1
    before = tables(postgres, database, SCHEMA)
    rows = postgres.run_sql(f"SELECT count(*) FROM {SCHEMA}.entry", database)

    airflow(postgres, database, tmp_path, "db", "migrate")
    airflow(postgres, database, tmp_path, "db", "check-migrations")
    airflow(postgres, database, tmp_path, "db", "reset", "--yes")

    assert {"dag", "job", "alembic_version"} <= of_airflow
    assert tables(postgres, database, "public") == of_airflow
    assert tables(postgres, database, SCHEMA) == before
    assert postgres.run_sql(f"SELECT count(*) FROM {SCHEMA}.entry", database) == rows
    assert commit_a_row(url, tmp_path / "second") == 1


def airflow(server: Server, database: str, folder: Path, *arguments: str) -> None:
    url = server.url_of(database).replace("postgresql:", "postgresql+psycopg:")
    settings = {
        "AIRFLOW_HOME": str(folder / "airflow"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": url,
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": url,
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    command = [sys.executable, "-m", "airflow", *arguments]
    done = subprocess.run(
        command, env={**os.environ, **settings}, capture_output=True, text=True, timeout=800, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
