"""A missing or old Java raises one clear error with the remedy before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockgate.storage_core.errors import MissingPartError
from lockgate.storage_core.spark.session import check_java, spark_session


def _java(home: Path, script: str) -> None:
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text(f"#!/bin/sh\n{script}\n")
    (home / "bin" / "java").chmod(0o755)


def test_the_error_for_a_missing_java_names_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        MissingPartError, match=r"Spark needs Java 17: there is no java on PATH.*openjdk-17-jre"
    ):
        spark_session()


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("echo 'openjdk version \"11.0.2\" 2019-01-15' >&2", "is Java 11"),
        ("echo 'java version \"1.8.0_202\"' >&2", "is Java 8"),
        ("exit 1", "does not run"),
        ("echo nonsense", "does not run"),
    ],
)
def test_the_error_for_an_unsupported_java_names_its_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, found: str
) -> None:
    _java(tmp_path, script)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(MissingPartError, match=rf"java {found}; nothing was started"):
        check_java()


@pytest.mark.parametrize("version", ["17.0.15", "21", "25-ea"])
def test_a_newer_java_is_accepted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str) -> None:
    _java(tmp_path, f"echo 'openjdk version \"{version}\"' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    check_java()
