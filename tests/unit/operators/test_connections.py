"""Tests of the operators with connections of AWS: credentials, and which process gets them."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowNotFoundException
from celery.signals import before_task_publish

from lockgate.operators.connections import (
    child_settings,
    lockgate_connection,
)
from lockgate.operators.dag_run.job_handle import attach
from lockgate.operators.dag_run.operator import CONNECTIONS
from lockgate.operators.jobs import JobAbortOperator, JobCommitOperator, JobSetupOperator
from lockgate.operators.recovery import JobRecoveryOperator
from lockgate.operators.spark_process.process import Part, SparkWork, pickled
from lockgate.operators.tasks import TaskCommitOperator
from lockgate.operators.uploads import UploadSweepOperator
from lockgate.storage_core.commit.destination.manifest import read_manifest
from lockgate.storage_core.settings import given_settings, load_settings
from lockgate.storage_core.stores import open_store
from tests.support.airflow.connections import connect, forget_credentials, run
from tests.support.s3.moto_server import served_moto
from tests.support.workers.celery_worker import StagedJob, memory_broker, worker_thread

S3 = pytest.mark.requires("s3-server")
ROLE = "arn:aws:iam::123456789012:role/lake-writer"


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_credentials(tmp_path, monkeypatch)


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


def write(handle: Any, conn_id: str) -> None:
    with (
        lockgate_connection(aws_conn_id=conn_id),
        attach(handle).attempt("t") as attempt,
        attempt.open("a.txt") as file,
    ):
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
    with lockgate_connection(aws_conn_id="lake"):
        [key] = read_manifest(destination).files
        assert open_store(destination).get(key) == b"data"
    assert dict(os.environ) == before
    assert given_settings() is None


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
def test_a_connection_may_name_a_profile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    destination = connect_server(monkeypatch, "unused")
    (tmp_path / "keys").write_text(
        f"[lake]\naws_access_key_id={os.environ['LOCKGATE_TEST_S3_KEY']}\n"
        f"aws_secret_access_key={os.environ['LOCKGATE_TEST_S3_SECRET']}\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "keys"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", os.environ["LOCKGATE_TEST_S3_ENDPOINT"])
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

        with lockgate_connection(aws_conn_id="lake"):
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

    with lockgate_connection(aws_conn_id="lake"):
        staged = StagedJob(tmp_path, load_settings(), files=1, destination=destination)
    handle = {"destination": destination, "job_id": staged.ids[1], "job_attempt": staged.ids[2]}
    # The worker has the credentials of its own environment: this process's, in this test.
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", os.environ["LOCKGATE_TEST_S3_KEY"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", os.environ["LOCKGATE_TEST_S3_SECRET"])
    monkeypatch.setenv("AWS_ENDPOINT_URL", os.environ["LOCKGATE_TEST_S3_ENDPOINT"])
    before_task_publish.connect(keep)
    try:
        with (
            memory_broker(),
            worker_thread(),
        ):
            _, task = run(TaskCommitOperator, job=handle, aws_conn_id="lake")
    finally:
        before_task_publish.disconnect(keep)
    receipt, commit = run(JobCommitOperator, job=handle, aws_conn_id="lake")

    assert published
    with lockgate_connection(aws_conn_id="lake"):
        store = open_store(destination)
        objects = [store.get(info.key) for page in store.pages() for info in page]
        shown = [load_settings()]
    assert receipt["rows"] == 10
    seen = [*objects, *map(repr, (published, task, commit, receipt, shown, caplog.text))]
    texts = [text if isinstance(text, bytes) else text.encode() for text in seen]
    assert [text for text in texts if secret in text] == []


def test_the_spark_child_gets_credentials_through_its_pipe_and_does_not_show_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect(monkeypatch, "lake", conn_type="aws", login="AKIDLAKE", password="s3cr3t-of-the-lake")

    with lockgate_connection(aws_conn_id="lake"):
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

    with lockgate_connection(aws_conn_id="lake"):
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
