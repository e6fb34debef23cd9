"""Tests of the connection type `lockgate`: journal and broker, its form and its test button."""

from __future__ import annotations

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from airflow.providers_manager import ProvidersManager
from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowFailException
from celery.backends.base import BaseKeyValueStoreBackend

from lockgate.operators.connections import (
    LockgateHook,
    lockgate_connection,
    with_password,
)
from lockgate.operators.jobs import JobSetupOperator
from lockgate.provider import get_provider_info
from lockgate.storage_core.journal import open_journal
from lockgate.storage_core.journal.process_journal import journal_url
from lockgate.storage_core.settings import load_settings, settings_in_effect
from lockgate.workers.celery_app import app
from lockgate.workers.gather import ended_in
from tests.support.airflow.connections import connect, forget_credentials, run
from tests.support.workers.celery_worker import memory_broker


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_credentials(tmp_path, monkeypatch)


def journal_at(path: Path) -> str:
    return f"sqlite:///{path}"


@pytest.mark.parametrize("conn_id", ["jobs", "lockgate_default"])
def test_the_journal_of_a_connection_is_used_and_the_environments_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, conn_id: str
) -> None:
    connect(monkeypatch, conn_id, conn_type="lockgate", extra={"journal_url": journal_at(tmp_path / "j.db")})
    named = {"lockgate_conn_id": conn_id} if conn_id != "lockgate_default" else {}

    run(JobSetupOperator, destination=str(tmp_path / "lake"), **named)

    assert (tmp_path / "j.db").exists()
    assert not (tmp_path / "home" / "journal.db").exists()


def test_what_a_connection_leaves_empty_is_taken_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCKGATE_JOURNAL_URL", "sqlite:////of/the/environment.db")
    monkeypatch.setenv("LOCKGATE_BROKER_URL", "redis://of-the-environment/7")
    connect(
        monkeypatch,
        "jobs",
        conn_type="lockgate",
        password="p@ss/word",
        extra={"journal_url": "postgresql://jobs@db/lockgate", "broker_url": ""},
    )

    with lockgate_connection(lockgate_conn_id="jobs"):
        settings = load_settings()

    assert journal_url(settings) == "postgresql://jobs:p%40ss%2Fword@db/lockgate"
    assert (settings.broker_url, settings.blob_server_url) == ("redis://of-the-environment/7", None)
    assert load_settings().journal_url == "sqlite:////of/the/environment.db"


def test_the_broker_of_a_connection_is_used_within_its_task_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with memory_broker():
        configured = app.conf.broker_url
        connect(
            monkeypatch,
            "jobs",
            conn_type="lockgate",
            extra={"broker_url": "redis://broker.invalid:6390", "broker_password": "hush"},
        )

        with lockgate_connection(lockgate_conn_id="jobs"):
            app.use_broker()
            inside = app.connection_for_write().as_uri(include_password=True), app.conf.result_backend
        app.use_broker()

        url = "redis://:hush@broker.invalid:6390/7"
        assert inside == (url, url)
        assert (app.conf.broker_url, app.conf.result_backend) == (configured, "cache+memory://")


def test_backend_and_connections_are_those_of_the_settings_in_effect() -> None:
    def used() -> tuple[str, str]:
        return app.backend.as_uri(), app.pool.connection.as_uri(include_password=True).replace(":@", "")

    with memory_broker():
        configured = used()
        found = []
        for name in ("a", "b"):
            with settings_in_effect(load_settings(broker_url=f"redis://{name}.invalid:6390/7")):
                found.append(used())
        assert found == [(f"redis://{name}.invalid:6390/7",) * 2 for name in ("a", "b")]
        assert used() == configured


def test_threads_ask_the_broker_of_their_own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, both = [], threading.Barrier(2, timeout=10)

    def get_many(backend: Any, ids: set[str], **_: Any) -> list[Any]:
        both.wait()
        asked.extend((each, backend.as_uri()) for each in ids)
        return []

    def ask(names: str) -> None:
        for name in names:
            with settings_in_effect(load_settings(broker_url=f"redis://{name}.invalid:6390/7")):
                ended_in(name, [0])

    monkeypatch.setattr(BaseKeyValueStoreBackend, "get_many", get_many)
    with memory_broker(), ThreadPoolExecutor(2) as threads:
        list(threads.map(ask, ["ab", "ba"]))

    assert sorted(asked) == [(f"{name}-0", f"redis://{name}.invalid:6390/7") for name in "aabb"]


def test_a_password_without_its_url_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    connect(monkeypatch, "jobs", conn_type="lockgate", password="alone")

    with pytest.raises(AirflowFailException, match="has a password for journal_url, and no journal_url"):
        run(JobSetupOperator, destination=str(tmp_path / "lake"), lockgate_conn_id="jobs")


@pytest.mark.parametrize(
    ("url", "with_it"),
    [
        ("postgresql://user@host/db?sslmode=require", "postgresql://user:a%3Ab@host/db?sslmode=require"),
        ("redis://host/7", "redis://:a%3Ab@host/7"),
        ("rediss://user@[::1]:6379/0", "rediss://user:a%3Ab@[::1]:6379/0"),
    ],
)
def test_a_password_is_put_into_a_url(url: str, with_it: str) -> None:
    assert with_password(url, "a:b") == with_it


def button(**fields: Any) -> tuple[bool, str]:
    """Press the form's test button: what the API server does with the fields."""
    extra = json.dumps(fields.pop("extra"))
    return Connection(conn_id="pressed", conn_type="lockgate", extra=extra, **fields).test_connection()


def test_the_test_button_reads_the_journal_and_changes_nothing(tmp_path: Path) -> None:
    url = journal_at(tmp_path / "j.db")
    missing = button(extra={"journal_url": url})
    assert not (tmp_path / "j.db").exists()
    open_journal(url).close()

    assert missing[0] is False
    assert "there is no such file on this machine" in missing[1]
    assert button(extra={"journal_url": url}) == (True, f"reached {url}")


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ({}, "the connection has no URL"),
        (
            {"broker_url": "redis://127.0.0.1:9/7", "broker_password": "hush"},
            "broker redis://:\\*\\*@127.0.0.1:9/7: it does not answer",
        ),
        ({"broker_url": "amqp://127.0.0.1"}, "amqp://… is not a Redis"),
        (
            {"journal_url": "postgresql://u:hush@127.0.0.1:9/db"},
            "journal postgresql://u:\\*\\*\\*@127.0.0.1:9",
        ),
        ({"blob_server_url": "ftp://127.0.0.1:9"}, "ftp://127.0.0.1:9"),
    ],
)
def test_the_test_button_says_what_is_wrong_without_a_password(extra: dict[str, str], reason: str) -> None:
    is_reached, message = button(extra=extra)

    assert not is_reached
    assert re.search(reason, message), message
    assert "hush" not in message


def test_airflow_finds_the_connection_type_with_its_form() -> None:
    [lockgate] = [
        meta
        for meta in ProvidersManager().iter_connection_type_hook_ui_metadata()
        if meta.connection_type == "lockgate"
    ]
    [declared] = get_provider_info()["connection-types"]

    assert lockgate.hook_class_name == f"{LockgateHook.__module__}.{LockgateHook.__qualname__}"
    assert lockgate.hook_name == "Lockgate"
    widgets = {
        widget.field_name: widget.is_sensitive
        for name, widget in ProvidersManager()._connection_form_widgets_from_metadata.items()
        if name.startswith("extra__lockgate__")
    }
    assert widgets == {
        "journal_url": False,
        "broker_url": False,
        "broker_password": True,
        "blob_server_url": False,
        "aws_conn_id": False,
    }
    assert set(widgets) == set(declared["conn-fields"])
