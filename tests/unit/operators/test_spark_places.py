"""Tests of where Spark runs, and of the file system that it gets for S3, without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lockgate.operators.audit import AuditOperator
from lockgate.operators.audits.staged_rows import StagedRows
from lockgate.operators.connections import SparkPlace, spark_place
from lockgate.operators.spark import SparkWriteOperator
from lockgate.operators.spark_process.process import SparkChild, SparkWork
from lockgate.storage_core.errors import InvalidInputError, MissingPartError
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.spark.s3a import hadoop_version, s3a_config, s3a_jars
from lockgate.storage_core.stores.s3.credentials import FixedCredentials


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PROFILE", "REGION", "DEFAULT_REGION", "ENDPOINT_URL", "ENDPOINT_URL_S3"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)


def connect(patch: pytest.MonkeyPatch, conn_id: str, **fields: Any) -> None:
    patch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(fields))


@pytest.mark.parametrize(
    ("host", "port", "master"),
    [
        ("spark://m", 7077, "spark://m:7077"),
        ("yarn", None, "yarn"),
        (None, None, "local[*]"),
    ],
)
def test_the_master_is_that_of_the_connection(
    monkeypatch: pytest.MonkeyPatch, host: str | None, port: int | None, master: str
) -> None:
    connect(monkeypatch, "cluster", conn_type="spark", host=host, port=port)

    assert spark_place(None, "cluster", None) == SparkPlace(master, {})
    assert spark_place("local[1]", "cluster", None).master == "local[1]"


def test_settings_of_the_connection_are_given_to_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    conf = {"spark.executor.memory": "4g", "spark.speculation": True}
    extra = {"conf": conf, "queue": "nightly", "deploy-mode": "client"}
    connect(monkeypatch, "cluster", conn_type="spark", host="yarn", extra=extra)

    assert spark_place(None, "cluster", None).config == {
        "spark.executor.memory": "4g",
        "spark.speculation": "true",
        "spark.yarn.queue": "nightly",
    }


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ({"deploy-mode": "cluster"}, "deploy-mode is 'cluster'; nothing was done"),
        ({"conf": ["spark.x=1"]}, "conf is no object; nothing was done"),
    ],
)
def test_a_connection_that_cannot_be_used_is_refused(
    monkeypatch: pytest.MonkeyPatch, extra: dict[str, Any], reason: str
) -> None:
    connect(monkeypatch, "cluster", conn_type="spark", host="yarn", extra=extra)

    with pytest.raises(InvalidInputError, match=reason):
        spark_place(None, "cluster", None)


def test_a_spark_connect_server_is_named_with_its_token_which_is_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fields = {"host": "sc://spark.example", "port": 443, "login": "etl", "password": "to/ken"}
    connect(monkeypatch, "remote", conn_type="spark_connect", extra={"use_ssl": True}, **fields)

    remote = spark_place(None, None, "remote").remote

    assert remote == "sc://spark.example:443/;user_id=etl;token=to%2Fken;use_ssl=true"
    assert "ken" not in repr(SparkWork(run="m:f", arguments={}, remote=remote))


def test_a_server_and_a_master_exclude_each_other() -> None:
    with pytest.raises(InvalidInputError, match="give one of them"):
        spark_place("local[1]", None, "remote")


def test_an_audit_runs_where_its_spark_connection_says(monkeypatch: pytest.MonkeyPatch) -> None:
    conf = {"spark.executor.memory": "4g", "spark.speculation": True}
    connect(monkeypatch, "cluster", conn_type="spark", host="spark://m", port=7077, extra={"conf": conf})
    started: list[SparkWork] = []
    monkeypatch.setattr(SparkChild, "run", lambda _, work: started.append(work))
    staged = StagedRows(root=Path("/s"), sha256={}, rows=None, chosen="", seen={})
    own = {"spark_config": {"spark.speculation": "false"}, "spark_conn_id": "cluster"}

    AuditOperator(task_id="a", job={}, engine="spark", **own)._in_spark(staged, {})
    AuditOperator(task_id="b", job={}, engine="spark", master="local[1]", **own)._in_spark(staged, {})

    assert [work.master for work in started] == ["spark://m:7077", "local[1]"]
    assert started[0].config == {"spark.executor.memory": "4g", "spark.speculation": "false"}


def operator(**arguments: Any) -> SparkWriteOperator:
    return SparkWriteOperator(task_id="write", job={}, python_callable="m:f", **arguments)


@pytest.mark.parametrize(
    ("arguments", "reads"),
    [
        ({"op_kwargs": {"source": "s3://raw/sales"}}, True),
        ({"op_kwargs": {"source": "/data/s3://"}}, False),
        ({"op_kwargs": {"source": "s3://raw"}, "reads_s3": False}, False),
        ({}, False),
    ],
)
def test_spark_gets_an_s3_file_system_if_an_argument_is_in_s3(arguments: dict[str, Any], reads: bool) -> None:
    assert operator(**arguments)._reads_s3() is reads


def test_sizes_and_packages_are_settings_of_the_session() -> None:
    write = operator(
        driver_memory="4g",
        packages=["a:b:1", ""],
        spark_config={"spark.jars.packages": "c:d:2", "spark.executor.cores": "2"},
    )

    assert write._config({"spark.executor.cores": "8", "spark.yarn.queue": "q"}) == {
        "spark.driver.memory": "4g",
        "spark.executor.cores": "2",
        "spark.jars.packages": "a:b:1,c:d:2",
        "spark.yarn.queue": "q",
    }


def test_hadoop_aws_has_the_version_of_sparks_own_hadoop() -> None:
    coordinates = s3a_jars(load_settings(spark_s3_jars=None))["spark.jars.packages"]

    assert coordinates == f"org.apache.hadoop:hadoop-aws:{hadoop_version()}"
    assert hadoop_version().startswith("3.")


def test_in_a_closed_network_the_jars_of_a_folder_are_used(tmp_path: Path) -> None:
    settings = load_settings(spark_s3_jars=tmp_path)
    with pytest.raises(MissingPartError, match="there is no hadoop-aws jar; nothing was started; put"):
        s3a_jars(settings)
    for name in ("hadoop-aws-3.5.0.jar", "bundle.jar", "README"):
        (tmp_path / name).touch()

    assert s3a_jars(settings) == {"spark.jars": f"{tmp_path}/bundle.jar,{tmp_path}/hadoop-aws-3.5.0.jar"}


def test_the_file_system_has_the_endpoint_and_the_credentials_of_the_settings() -> None:
    settings = load_settings(s3_endpoint_url="http://s3.example:9000", s3_region="eu-west-1")
    role = settings.with_s3_credentials(FixedCredentials("A", "B", "C"))
    places = {
        "fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "fs.s3a.endpoint": "http://s3.example:9000",
        "fs.s3a.endpoint.region": "eu-west-1",
        "fs.s3a.path.style.access": "true",
    }

    assert s3a_config(settings) == places
    assert s3a_config(role) == {
        **places,
        "fs.s3a.access.key": "A",
        "fs.s3a.secret.key": "B",
        "fs.s3a.session.token": "C",
        "fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider",
    }
    assert s3a_config(load_settings(s3_anonymous=True))["fs.s3a.aws.credentials.provider"].endswith(
        ".AnonymousAWSCredentialsProvider"
    )


def test_the_credentials_of_a_profile_are_those_of_the_stores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "keys").write_text("[lake]\naws_access_key_id=A\naws_secret_access_key=B\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "keys"))

    config = s3a_config(load_settings(s3_profile="lake"))

    assert (config["fs.s3a.access.key"], config["fs.s3a.secret.key"]) == ("A", "B")
    assert config["fs.s3a.aws.credentials.provider"].endswith(".SimpleAWSCredentialsProvider")
