"""Tests of the environment of the Spark child: which secrets it gets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lockgate.operators import (
    AuditOperator,
    SparkWriteOperator,
)
from lockgate.operators.audits.staged_rows import StagedRows
from lockgate.operators.spark_process.process import ALL, Part, SparkChild, SparkWork, child_environment


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        *("AIRFLOW__CORE__FERNET_KEY", "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "AIRFLOW_CONN_LAKE"),
        *("LOCKGATE_BROKER_URL", "LOCKGATE_JOURNAL_URL", "LOCKGATE_OBSERVER_URLS", "AWS_SECRET_ACCESS_KEY"),
        *("GOOGLE_TOKEN", "GITHUB_TOKEN", "DATABASE_PASSWORD", "_AIRFLOW_SUPERVISOR", "CELERY_BROKER"),
    ):
        monkeypatch.setenv(name, '["postgresql://a:secret@h/d"]' if "OBSERVER" in name else "secret")
    monkeypatch.setenv("https_proxy", "http://proxy")
    monkeypatch.setenv("JAVA_HOME", "/java")


def secret_names(environment: dict[str, str]) -> set[str]:
    return {name for name, value in environment.items() if "secret" in value}


@pytest.mark.usefixtures("secrets")
def test_the_spark_child_has_what_spark_needs_and_no_secret_of_airflow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    everything, nothing = child_environment(), child_environment(frozenset())

    assert {"PATH", "HOME", "JAVA_HOME", "https_proxy", "LOCKGATE_HOME"} <= nothing.keys()
    assert secret_names(nothing) == set()
    assert secret_names(child_environment(frozenset({"s3"}))) == {"AWS_SECRET_ACCESS_KEY"}
    journal = {"LOCKGATE_JOURNAL_URL", "LOCKGATE_OBSERVER_URLS"}
    assert secret_names(everything) == {"AWS_SECRET_ACCESS_KEY", *journal}
    assert nothing["PYTHONPATH"].split(os.pathsep) == list(filter(None, sys.path))
    monkeypatch.setenv("LOCKGATE_SPARK_ENVIRONMENT", '["GOOGLE_*"]')
    assert secret_names(child_environment(frozenset())) == {"GOOGLE_TOKEN"}


@pytest.mark.usefixtures("secrets")
def test_the_child_process_is_started_with_that_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[dict[str, str]] = []

    def start(*_: object, env: dict[str, str], **__: object) -> None:
        started.append(env)
        raise OSError("not started")

    monkeypatch.setattr(subprocess, "Popen", start)
    with pytest.raises(OSError, match="not started"):
        SparkChild(None).run(SparkWork(run="m:f", arguments={}, needs=frozenset()))  # type: ignore[arg-type]

    assert [secret_names(environment) for environment in started] == [set()]


@pytest.mark.parametrize(
    ("source", "needs"),
    [("/data/in", set()), ("s3a://raw/x", {"s3"}), ("s3://raw/x", {"s3"}), (None, set())],
)
def test_a_restricted_write_gets_credentials_of_s3_if_it_reads_s3(
    source: str | None, needs: set[str]
) -> None:
    write = SparkWriteOperator(
        task_id="write", restricted=True, job={}, python_callable="m:f", op_kwargs={"source": source, "n": 1}
    )

    assert write._needs(reads_s3=write._reads_s3()) == needs


@pytest.mark.parametrize(("is_restricted", "needs"), [(True, frozenset()), (False, ALL)])
def test_a_restricted_audit_in_spark_gets_no_credentials(
    is_restricted: bool, needs: frozenset[Part], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[SparkWork] = []
    monkeypatch.setattr(SparkChild, "run", lambda _, work: started.append(work))
    audit = AuditOperator(task_id="audit", restricted=is_restricted, job={}, engine="spark")

    audit._in_spark(StagedRows(root=Path("/s"), sha256={}, rows=None, chosen="", seen={}), {})

    assert [(work.needs, work.master) for work in started] == [(needs, "local[*]")]
