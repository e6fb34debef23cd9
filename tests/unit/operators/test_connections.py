"""Tests of the operators with Airflow's connections: S3's credentials, and where the journal is."""

from __future__ import annotations

import json
import logging
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from airflow.providers_manager import ProvidersManager
from airflow.sdk import DAG, Connection
from airflow.sdk.exceptions import AirflowFailException, AirflowNotFoundException
from celery.backends.base import BaseKeyValueStoreBackend
from celery.contrib.testing.worker import start_worker
from celery.signals import before_task_publish

from lockgate import operators
from lockgate.operators.connections.hook import LockgateHook, with_password
from lockgate.operators.connections.read import (
    child_settings,
    connections,
)
from lockgate.operators.dag_run.job_handle import attach
from lockgate.operators.dag_run.operator import CONNECTIONS
from lockgate.operators.jobs import JobAbortOperator, JobCommitOperator, JobSetupOperator
from lockgate.operators.recovery import JobRecoveryOperator
from lockgate.operators.spark_process.environment import Part
from lockgate.operators.spark_process.process import SparkWork, pickled
from lockgate.operators.tasks import TaskCommitOperator
from lockgate.operators.uploads import UploadSweepOperator
from lockgate.provider import get_provider_info
from lockgate.storage_core.commit.destination.log import read_manifest
from lockgate.storage_core.errors import AccessDeniedError
from lockgate.storage_core.journal import open_journal
from lockgate.storage_core.journal.process_journal import journal_url
from lockgate.storage_core.settings import Settings, given_settings, load_settings, settings_in_effect
from lockgate.storage_core.stores import open_store
from lockgate.workers.celery_app import QUEUES, app
from lockgate.workers.gather import ended_in
from tests.support.airflow.task_run import TaskRun
from tests.support.s3.moto_server import served_moto
from tests.support.workers.celery_worker import StagedJob, memory_broker

S3 = pytest.mark.requires("s3-server")
ROLE = "arn:aws:iam::123456789012:role/lake-writer"


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the process no credentials: neither in its environment nor in the files of its user."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "AIRFLOW_CONN_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    monkeypatch.setenv("LOCKGATE_HOME", str(tmp_path / "home"))


def connect(patch: pytest.MonkeyPatch, conn_id: str, **fields: Any) -> None:
    patch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(fields))


def connect_server(patch: pytest.MonkeyPatch, conn_id: str, **extra: Any) -> str:
    """Add a connection to the real S3 server; return a new destination there."""
    connect(
        patch,
        conn_id,
        conn_type="aws",
        login=os.environ["LOCKGATE_TEST_S3_KEY"],
        password=os.environ["LOCKGATE_TEST_S3_SECRET"],
        extra={
            "endpoint_url": os.environ["LOCKGATE_TEST_S3_ENDPOINT"],
            "region_name": "us-east-1",
            **extra,
        },
    )
    return f"{os.environ['LOCKGATE_TEST_S3_URL']}/connection-{os.urandom(6).hex()}"


def run(operator_class: type[Any], **arguments: Any) -> tuple[Any, TaskRun]:
    task = TaskRun()
    return operator_class(task_id="t", **arguments).execute(task.context()), task


def write(handle: Any, conn_id: str) -> None:
    with connections(conn_id), attach(handle).attempt("t") as attempt, attempt.open("a.txt") as file:
        file.write(b"data")


@S3
def test_a_whole_job_runs_with_the_credentials_and_the_endpoint_of_a_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    destination = connect_server(monkeypatch, "lake")
    before = dict(os.environ)

    handle, _ = run(JobSetupOperator, destination=destination, aws_conn_id="lake")
    write(handle, "lake")
    receipt, _ = run(JobCommitOperator, job=handle, aws_conn_id="lake")
    phase, _ = run(JobAbortOperator, job=handle, aws_conn_id="lake")
    swept, _ = run(UploadSweepOperator, destinations=destination, aws_conn_id="lake")
    recovered, _ = run(JobRecoveryOperator, destinations=destination, aws_conn_id="lake")

    assert (receipt["files"], phase, list(swept)) == (1, "committed", [destination])
    assert "failed" not in recovered
    with connections("lake"):
        [key] = read_manifest(destination).files
        assert open_store(destination).get(key) == b"data"
    assert dict(os.environ) == before
    assert given_settings() is None


@S3
def test_without_the_connection_the_same_job_has_no_access(monkeypatch: pytest.MonkeyPatch) -> None:
    destination = connect_server(monkeypatch, "lake")
    monkeypatch.setenv("AWS_ENDPOINT_URL", os.environ["LOCKGATE_TEST_S3_ENDPOINT"])

    with pytest.raises(AccessDeniedError, match="credentials"):
        run(JobSetupOperator, destination=destination)


@S3
def test_a_connection_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    destination = connect_server(monkeypatch, "lake")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("LOCKGATE_S3_PROFILE", "of-another-user")

    handle, _ = run(JobSetupOperator, destination=destination, aws_conn_id="lake")

    assert handle["destination"] == destination


@S3
def test_the_lockgate_connection_names_the_aws_connection_of_tasks_that_name_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    destination = connect_server(monkeypatch, "lake")
    connect(monkeypatch, "lockgate_default", conn_type="lockgate", extra={"aws_conn_id": "lake"})

    handle, _ = run(JobSetupOperator, destination=destination)

    assert handle["destination"] == destination


@S3
@pytest.mark.parametrize("client", ["crt", "boto3"])
def test_a_connection_may_name_a_profile(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, client: str
) -> None:
    destination = connect_server(monkeypatch, "unused")
    (tmp_path / "keys").write_text(
        f"[lake]\naws_access_key_id={os.environ['LOCKGATE_TEST_S3_KEY']}\n"
        f"aws_secret_access_key={os.environ['LOCKGATE_TEST_S3_SECRET']}\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "keys"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", os.environ["LOCKGATE_TEST_S3_ENDPOINT"])
    monkeypatch.setenv("LOCKGATE_S3_CLIENT", client)
    connect(monkeypatch, "lake", conn_type="aws", extra={"profile_name": "lake"})

    handle, _ = run(JobSetupOperator, destination=destination, aws_conn_id="lake")

    assert handle["destination"] == destination


def test_a_connection_may_assume_a_role_whose_credentials_refresh_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with served_moto("role-lake") as url:
        connect(
            monkeypatch,
            "lake",
            conn_type="aws",
            login="AKIABASEKEY",
            password="base-secret",
            extra={
                "role_arn": ROLE,
                "region_name": "eu-west-1",
                "endpoint_url": url,
                "service_config": {"sts": {"endpoint_url": url}},
            },
        )

        handle, _ = run(JobSetupOperator, destination="s3://role-lake/sales", aws_conn_id="lake")

        with connections("lake"):
            settings = load_settings()
            assert settings.s3_region == "eu-west-1"
            source = settings.s3_credentials
            assert source is not None
            assumed = source()
            assert assumed.get_frozen_credentials().access_key.startswith("ASIA")
            assert assumed.refresh_needed(refresh_in=24 * 3600)  # botocore asks for new ones in time
            child = child_settings()
            assert child is not None
            assert child.s3_credentials is not None
            assert child.s3_credentials().token == assumed.get_frozen_credentials().token
    assert handle["destination"] == "s3://role-lake/sales"


@S3
def test_no_secret_is_in_xcom_records_messages_or_logs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="lockgate")
    destination = connect_server(monkeypatch, "lake")
    secret = os.environ["LOCKGATE_TEST_S3_SECRET"].encode()
    published: list[Any] = []

    def keep(**message: Any) -> None:
        published.append((message["body"], message["headers"], message["properties"]))

    with connections("lake"):
        staged = StagedJob(tmp_path, load_settings(), files=1, destination=destination)
    handle = {"destination": destination, "job_id": staged.ids[1], "job_attempt": staged.ids[2]}
    before_task_publish.connect(keep)
    try:
        with (
            memory_broker(),
            # The worker has the credentials of its own environment: this process's, in this test.
            _credentials_of_the_worker(),
            start_worker(
                app, pool="solo", perform_ping_check=False, queues=list(QUEUES), shutdown_timeout=30
            ),
        ):
            _, task = run(TaskCommitOperator, job=handle, aws_conn_id="lake")
    finally:
        before_task_publish.disconnect(keep)
    receipt, commit = run(JobCommitOperator, job=handle, aws_conn_id="lake")

    assert published
    with connections("lake"):
        store = open_store(destination)
        objects = [store.get(info.key) for page in store.pages() for info in page]
        shown = [repr(load_settings()), load_settings().model_dump_json()]
    assert receipt["rows"] == 10
    seen = [*objects, *map(repr, (published, task, commit, receipt, shown, caplog.text))]
    texts = [text if isinstance(text, bytes) else text.encode() for text in seen]
    assert [text for text in texts if secret in text] == []


class _credentials_of_the_worker:  # noqa: N801 - a context manager
    def __enter__(self) -> None:
        self._patch = pytest.MonkeyPatch()
        self._patch.setenv("AWS_ACCESS_KEY_ID", os.environ["LOCKGATE_TEST_S3_KEY"])
        self._patch.setenv("AWS_SECRET_ACCESS_KEY", os.environ["LOCKGATE_TEST_S3_SECRET"])
        self._patch.setenv("AWS_ENDPOINT_URL", os.environ["LOCKGATE_TEST_S3_ENDPOINT"])

    def __exit__(self, *_: object) -> None:
        self._patch.undo()


def test_the_spark_child_gets_credentials_through_its_pipe_and_does_not_show_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect(monkeypatch, "lake", conn_type="aws", login="AKIDLAKE", password="s3cr3t-of-the-lake")

    with connections("lake"):
        settings = child_settings()
    work = SparkWork(run="m:f", arguments={}, settings=settings)

    assert b"s3cr3t-of-the-lake" in pickled(work)
    assert "s3cr3t" not in repr(work)
    assert "s3cr3t" not in repr(settings)
    assert settings is not None
    assert "s3cr3t" not in repr(settings.s3_credentials)


@pytest.mark.parametrize(
    ("needs", "gets"),
    [(set(), set()), ({"s3"}, {"lake"}), ({"journal"}, {"journal", "observer"})],
)
def test_the_settings_of_the_spark_child_have_only_the_secrets_that_it_needs(
    monkeypatch: pytest.MonkeyPatch, needs: set[Part], gets: set[str]
) -> None:
    connect(monkeypatch, "lake", conn_type="aws", login="AKIDLAKE", password="s3cr3t-of-lake")
    monkeypatch.setenv("LOCKGATE_BROKER_URL", "redis://:s3cr3t-of-broker@h/7")
    monkeypatch.setenv("LOCKGATE_JOURNAL_URL", "postgresql://u:s3cr3t-of-journal@h/d")
    monkeypatch.setenv("LOCKGATE_OBSERVER_URLS", '["postgresql://u:s3cr3t-of-observer@h/d"]')

    with connections("lake"):
        work = SparkWork(run="m:f", arguments={}, settings=child_settings(needs))

    assert set(re.findall(r"s3cr3t-of-(\w+)", pickled(work).decode(errors="replace"))) == gets


@pytest.mark.parametrize("argument", CONNECTIONS)
def test_a_named_connection_that_does_not_exist_is_an_error_with_a_remedy(
    tmp_path: Path, argument: str
) -> None:
    with pytest.raises(AirflowNotFoundException, match=f"{argument}='gone'.*nothing was done; create it"):
        run(JobSetupOperator, destination=str(tmp_path / "lake"), **{argument: "gone"})

    assert not (tmp_path / "lake").exists()


@pytest.mark.parametrize("argument", CONNECTIONS)
def test_a_connection_of_another_type_is_refused_without_a_retry(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, argument: str
) -> None:
    connect(monkeypatch, "web", conn_type="http")

    with pytest.raises(AirflowFailException, match="'web' has the type 'http'; nothing was done"):
        run(JobSetupOperator, destination=str(tmp_path / "lake"), **{argument: "web"})


def test_every_operator_takes_connections_as_templates() -> None:
    for name in [name for name in operators.__all__ if name.endswith("Operator")]:
        operator = getattr(operators, name)
        assert set(operator.template_fields) >= set(CONNECTIONS), name
        assert hasattr(operator.execute, "__wrapped__"), name


def test_default_arguments_of_a_dag_name_the_connections_of_all_its_tasks() -> None:
    with DAG("d", default_args={"aws_conn_id": "lake", "lockgate_conn_id": "jobs"}):
        commit: Any = JobCommitOperator(task_id="commit", job={})

    assert (commit.aws_conn_id, commit.lockgate_conn_id) == ("lake", "jobs")


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

    with connections(lockgate_conn_id="jobs"):
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

        with connections(lockgate_conn_id="jobs"):
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
            with settings_in_effect(Settings(broker_url=f"redis://{name}.invalid:6390/7")):
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
            with settings_in_effect(Settings(broker_url=f"redis://{name}.invalid:6390/7")):
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
        ("postgresql://user:old@host:5432/db", "postgresql://user:a%3Ab@host:5432/db"),
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
