"""Tests of restricted operators: what a form may name, and which secrets the Spark child gets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from lockgate.operators import (
    AuditOperator,
    BlobUploadOperator,
    JobAnnounceOperator,
    JobRecoveryOperator,
    JobSetupOperator,
    SparkWriteOperator,
    TaskCommitOperator,
    UploadSweepOperator,
)
from lockgate.operators.asset_events import announce
from lockgate.operators.audits.staged_rows import StagedRows
from lockgate.operators.dag_files import dags_dir
from lockgate.operators.spark_process.environment import ALL, Part, child_environment
from lockgate.operators.spark_process.process import SparkChild, SparkWork
from lockgate.operators.trigger_rights.allow_lists import AllowLists, allow_lists
from lockgate.operators.trigger_rights.parameters import READ_FILES, check_parameters
from lockgate.operators.trigger_rights.suites import check_suite
from lockgate.storage_core.commit.recovery import expired_jobs
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.settings import Settings
from tests.support.airflow.task_run import TaskRun

LISTS = AllowLists(
    sources=("/data/in", "s3://raw/sales", "file:///srv/a b", "s3://whole"),
    destinations=("s3://lake/open", "/lake"),
    transforms=("mypackage.sales:*", "other.module:tidy"),
)

READ = {
    "/data/in": "file:///data/in",
    "/data/in/": "file:///data/in",
    "/data/in/a/b.csv": "file:///data/in/a/b.csv",
    "/data/in/../in/a": "file:///data/in/a",
    "/data//in/./a": "file:///data/in/a",
    "file:///data/in/a": "file:///data/in/a",
    "file:/data/in/a": "file:///data/in/a",
    "FILE:/data/in/a": "file:///data/in/a",
    "/data/in/*.csv": "file:///data/in/*.csv",
    "/data/in/day=[0-9]*/part-*": "file:///data/in/day=[0-9]*/part-*",
    "/data/in*": None,
    "/data/in/day=10%3A00": "file:///data/in/day=10%3A00",
    "/srv/a b/c": "file:///srv/a b/c",
    "s3://raw/sales": "s3://raw/sales",
    "s3a://raw/sales/x": "s3://raw/sales/x",
    "S3N://raw/sales/": "s3://raw/sales",
    "s3a://whole/*/x": "s3://whole/*/x",
    "s3://whole": "s3://whole",
    "": None,
    "/": None,
    "/etc/passwd": None,
    "etc/passwd": None,
    "/data/in2": None,
    "/data/in/../../etc/passwd": None,
    "/data/in/%2e%2e/%2e%2e/etc/passwd": None,
    "/data/in/..%2f..%2fetc/passwd": None,
    "%2fetc/passwd": None,
    "file:/etc/passwd": None,
    "file:///etc/passwd": None,
    "file://localhost/data/in": None,
    "file://data/in": None,
    "/data/in/{a,../../../etc/passwd}": None,
    "{/data/in,/etc/passwd}": None,
    "/data/in,/etc/passwd": None,
    "/data/in/\\.\\./\\.\\./etc/passwd": None,
    "/data/in/*/../../etc/passwd": None,
    "/data/in/[.][.]/../x": None,
    "/*": None,
    "*": None,
    "/data/*/a": None,
    "/data/in/a?b": None,
    "/data/in/*?b": None,
    "/data/in\0/../../etc/passwd": None,
    "s3://raw": None,
    "s3://raw/sales2": None,
    "s3://raw/sales/../secret": None,
    "s3://raw/sales/%2e%2e/secret": None,
    "s3://raw/*": None,
    "s3a://raw@evil/sales": None,
    "s3a://key:secret@raw/sales": None,
    "s3a://raw:80/sales": None,
    "s3://other/raw/sales": None,
    "s3://whole2/x": None,
    "hdfs:///data/in": None,
    "http://raw/sales": None,
    "jar:file:///data/in": None,
    "viewfs:/data/in": None,
    "s3:/raw/sales": None,
    " /etc/passwd": None,
}


@pytest.mark.parametrize(("given", "read"), READ.items())
def test_a_source_is_compared_as_spark_would_resolve_it(given: str, read: str | None) -> None:
    if read is not None:
        assert LISTS.source(given) == read
        return
    with pytest.raises(InvalidInputError, match=r"nothing was read|has no meaning|destination"):
        LISTS.source(given)


def test_a_refusal_names_the_input_the_setting_and_the_remedy() -> None:
    with pytest.raises(InvalidInputError) as refused:
        LISTS.destination("/etc")

    assert str(refused.value) == (
        "destination '/etc' is not allowed in a form: LOCKGATE_TRIGGER_DESTINATIONS (without it "
        "LOCKGATE_DESTINATIONS) allows s3://lake/open, /lake; nothing was read or written; choose another, "
        "or ask the operator of Airflow's workers to extend that setting"
    )


def test_links_are_followed_before_the_comparison(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "in" / "link").symlink_to(tmp_path / "out")
    (tmp_path / "alias").symlink_to(tmp_path / "in")
    lists = AllowLists(sources=(str(tmp_path / "alias"),), libraries=(str(tmp_path / "in"),))

    assert lists.source(str(tmp_path / "in" / "a")) == f"file://{tmp_path}/in/a"
    assert lists.source(str(tmp_path / "alias" / "a")) == f"file://{tmp_path}/alias/a"
    for outside in ("in/link", "in/link/a", "alias/link/*.csv", "out"):
        with pytest.raises(InvalidInputError, match="LOCKGATE_TRIGGER_SOURCES"):
            lists.source(str(tmp_path / outside))
    with pytest.raises(InvalidInputError, match="LOCKGATE_TRIGGER_LIBRARIES"):
        lists.library(str(tmp_path / "in"))  # it has a link that leads out
    with pytest.raises(InvalidInputError, match="LOCKGATE_TRIGGER_LIBRARIES"):
        lists.library(f"{tmp_path}/in/link/../secret")  # the parent of the link's target


@pytest.mark.parametrize(
    ("given", "is_allowed"),
    [
        ("mypackage.sales:clean", True),
        ("other.module:tidy", True),
        ("other.module:other", False),
        ("mypackage.sales_evil:clean", False),
        ("os:system", False),
        ("mypackage.sales:clean\nos:system", False),
        ("mypackage.sales:a.b", False),
        ("mypackage.sales", False),
    ],
)
def test_a_transformation_matches_a_pattern(given: str, is_allowed: bool) -> None:
    if is_allowed:
        LISTS.transform(given)
        return
    with pytest.raises(InvalidInputError, match="LOCKGATE_TRIGGER_TRANSFORMS"):
        LISTS.transform(given)


def test_by_default_a_form_reads_and_writes_the_configured_destinations_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCKGATE_DESTINATIONS", "s3://lake/a,/lake/b")

    lists = allow_lists()

    assert (lists.sources, lists.destinations) == (("s3://lake/a", "/lake/b"),) * 2
    assert (lists.libraries, lists.transforms, lists.staging) == ((), (), ())
    monkeypatch.setenv("LOCKGATE_TRIGGER_SOURCES", '["/in"]')
    monkeypatch.setenv("LOCKGATE_TRIGGER_DESTINATIONS", '["/out"]')
    assert (allow_lists().sources, allow_lists().destinations) == (("/in",), ("/out",))


def expectation(kind: str = "expect_column_values_to_not_be_null", **kwargs: object) -> dict[str, object]:
    return {"name": "s", "expectations": [{"type": kind, "kwargs": kwargs}]}


@pytest.mark.parametrize(
    "suite",
    [
        "/etc/passwd",
        ["x"],
        expectation(row_condition="@pd.io.common.os.system('id')", condition_parser="pandas"),
        expectation(row_condition={"type": "pass_through", "pass_through_filter": "@x"}),
        expectation(condition_parser="pandas"),
        expectation("unexpected_rows_expectation", unexpected_rows_query="select 1"),
        expectation("UnexpectedRowsExpectation"),
        expectation("expect_query_results_to_match_comparison"),
        expectation("expect_column_values_to_match_json_schema", json_schema={"$ref": "file:///etc/passwd"}),
        {"name": "s", "expectations": [{"expectation_type": "my_own", "kwargs": {}}]},
        {"name": "s", "expectations": [{"kwargs": {}}]},
    ],
)
def test_a_suite_with_code_is_refused(suite: object) -> None:
    with pytest.raises(InvalidInputError, match=r"suite: .*; nothing was read"):
        check_suite(suite)


def test_a_suite_of_expectations_on_columns_is_allowed() -> None:
    check_suite(expectation(column="a"))
    check_suite(expectation("expect_table_row_count_to_be_between", min_value=1))


@pytest.fixture
def restricted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Allow a form one folder; return it."""
    (tmp_path / "lake").mkdir()
    monkeypatch.setenv("LOCKGATE_TRIGGER_DESTINATIONS", json.dumps([str(tmp_path / "lake")]))
    return tmp_path / "lake"


HANDLE = {"destination": "/etc", "job_id": "a-g1", "job_attempt": "0123456789abcdef"}

FORBIDDEN: list[tuple[Any, dict[str, Any], str]] = [
    (JobSetupOperator, {"destination": "/etc"}, "LOCKGATE_TRIGGER_DESTINATIONS"),
    (JobSetupOperator, {"destination": "{lake}/../x"}, "LOCKGATE_TRIGGER_DESTINATIONS"),
    (JobSetupOperator, {"destination": "{lake}", "staging": "/etc"}, "LOCKGATE_STAGING_ROOTS"),
    (
        JobSetupOperator,
        {"destination": "{lake}", "artefacts": {"job_id": "x"}},
        "LOCKGATE_TRIGGER_LIBRARIES allows nothing",
    ),
    (BlobUploadOperator, {"files": ["/etc/passwd"]}, "LOCKGATE_TRIGGER_LIBRARIES"),
    (BlobUploadOperator, {"files": "/etc/passwd"}, "LOCKGATE_TRIGGER_LIBRARIES"),
    (SparkWriteOperator, {"job": HANDLE, "python_callable": "m:f"}, "LOCKGATE_TRIGGER_DESTINATIONS"),
    (TaskCommitOperator, {"job": HANDLE}, "LOCKGATE_TRIGGER_DESTINATIONS"),
    (AuditOperator, {"job": HANDLE}, "LOCKGATE_TRIGGER_DESTINATIONS"),
    (
        AuditOperator,
        {"job": {**HANDLE, "destination": "{lake}"}, "suite": "/etc/passwd"},
        "suite.to_json_dict",
    ),
    (
        AuditOperator,
        {"job": {**HANDLE, "destination": "{lake}"}, "master": "spark://elsewhere:7077"},
        "LOCKGATE_TRIGGER_SPARK",
    ),
    (
        SparkWriteOperator,
        {
            "job": {**HANDLE, "destination": "{lake}"},
            "python_callable": READ_FILES,
            "spark_config": {"spark.driver.extraJavaOptions": "-javaagent:/tmp/a.jar"},
        },
        "LOCKGATE_TRIGGER_SPARK",
    ),
    (
        SparkWriteOperator,
        {
            "job": {**HANDLE, "destination": "{lake}"},
            "python_callable": READ_FILES,
            "op_kwargs": {"source": "/etc/passwd"},
        },
        "LOCKGATE_TRIGGER_SOURCES",
    ),
    (
        SparkWriteOperator,
        {
            "job": {**HANDLE, "destination": "{lake}"},
            "python_callable": READ_FILES,
            "op_kwargs": {"source": "{lake}", "transform": "os:system"},
        },
        "LOCKGATE_TRIGGER_TRANSFORMS",
    ),
    (
        SparkWriteOperator,
        {"job": {**HANDLE, "destination": "{lake}"}, "python_callable": "os:system"},
        "LOCKGATE_TRIGGER_TRANSFORMS",
    ),
    (
        SparkWriteOperator,
        {
            "job": {**HANDLE, "destination": "{lake}"},
            "python_callable": READ_FILES,
            "options": {"Path": "/etc"},
        },
        "options: 'Path' is not allowed in a form",
    ),
    (
        AuditOperator,
        {"job": {**HANDLE, "destination": "{lake}"}, "options": {"fs.s3a.endpoint": "http://elsewhere"}},
        "options: 'fs.s3a.endpoint' is not allowed in a form",
    ),
    (
        AuditOperator,
        {"job": {**HANDLE, "destination": "{lake}"}, "options": {"Compression": "org.example.Evil"}},
        "options: Compression='org.example.Evil' is not allowed in a form",
    ),
    (
        SparkWriteOperator,
        {
            "job": {**HANDLE, "destination": "{lake}"},
            "python_callable": READ_FILES,
            "op_kwargs": {"source": "{lake}", "source_options": {"codec": "org.example.Evil"}},
        },
        "source_options: codec='org.example.Evil' is not allowed in a form",
    ),
    (
        AuditOperator,
        {"job": {**HANDLE, "destination": "{lake}"}, "data_docs": "/etc/cron.d"},
        "data_docs '/etc/cron.d' is not allowed",
    ),
    (JobRecoveryOperator, {"destinations": "{lake}, s3://other"}, "s3://other"),
    (UploadSweepOperator, {"destinations": ["s3://other"]}, "LOCKGATE_TRIGGER_DESTINATIONS"),
]

UNOPENED: list[tuple[str, str, bool]] = [
    ("destination", "/lake/x", True),
    ("destination", "file:///lake/x", True),
    ("destination", "s3://lake/open/x", True),
    ("destination", "file:/lake/x", False),
    ("destination", "file:/../lake/x", False),
    ("destination", "s3a://lake/open/x", False),
    ("library", "/libraries/a.py", True),
    ("library", "file:/libraries/a.py", False),
    ("library", "file:///libraries/a.py", False),
    ("staged", "/staging/a", True),
    ("staged", "file:///staging/a", False),
]


@pytest.mark.parametrize(("what", "given", "is_allowed"), UNOPENED)
def test_a_path_is_compared_as_it_is_opened(what: str, given: str, is_allowed: bool) -> None:
    lists = AllowLists(
        destinations=("s3://lake/open", "/lake"), libraries=("/libraries",), staging=("/staging",)
    )
    if is_allowed:
        getattr(lists, what)(given)
        return
    with pytest.raises(InvalidInputError, match=r"nothing was read or written|write s3://"):
        getattr(lists, what)(given)


@pytest.mark.parametrize("operator", [JobRecoveryOperator, JobAnnounceOperator])
def test_one_destination_is_not_split_at_commas_after_it_was_checked(
    operator: Any, restricted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def keep(destination: str, *_: object, **__: object) -> Any:
        opened.append(destination)
        raise InvalidInputError("not read")

    monkeypatch.setattr(expired_jobs, "expired_jobs_at", keep)
    monkeypatch.setattr(announce, "open_store", keep)
    given = f"{restricted}/x,{tmp_path}/other"
    task = operator(task_id="task", restricted=True, destination=given)
    task.pre_execute(TaskRun().context())

    with suppress(AirflowException):  # recovery reports the destination that could not be read
        task.execute(TaskRun().context())

    assert opened == [given]


def in_lake(value: Any, lake: Path) -> Any:
    if isinstance(value, dict):
        return {name: in_lake(each, lake) for name, each in value.items()}
    return value.replace("{lake}", str(lake)) if isinstance(value, str) else value


@pytest.mark.parametrize(("operator", "given", "why"), FORBIDDEN)
def test_a_restricted_operator_refuses_what_a_form_may_not_name(
    operator: Any, given: dict[str, Any], why: str, restricted: Path
) -> None:
    task = operator(task_id="task", restricted=True, **in_lake(given, restricted))

    with pytest.raises(AirflowFailException, match=why):
        task.pre_execute(TaskRun().context())


def test_an_operator_whose_author_wrote_the_values_may_name_anything(restricted: Path) -> None:
    for operator, given, _ in FORBIDDEN:
        operator(task_id="task", **in_lake(given, restricted)).pre_execute(TaskRun().context())


def test_a_restricted_operator_accepts_what_is_allowed(
    restricted: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = tmp_path / "a.py"
    library.touch()
    monkeypatch.setenv("LOCKGATE_TRIGGER_LIBRARIES", json.dumps([str(library)]))
    monkeypatch.setenv("LOCKGATE_STAGING_ROOTS", json.dumps([str(tmp_path)]))
    handle = {**HANDLE, "destination": f"file://{restricted}/x"}
    tasks: list[Any] = [
        JobSetupOperator(
            task_id="a",
            restricted=True,
            destination=f"{restricted}/x",
            staging=str(tmp_path / "s"),
            artefacts={"job_id": "x"},
        ),
        BlobUploadOperator(task_id="b", restricted=True, files=[str(library)]),
        BlobUploadOperator(task_id="c", restricted=True, files=None),
        AuditOperator(task_id="d", restricted=True, job=handle, suite=expectation(column="a")),
        SparkWriteOperator(
            task_id="e",
            restricted=True,
            job=handle,
            python_callable=READ_FILES,
            options={"compression": "zstd"},
            spark_config={"spark.sql.shuffle.partitions": "4"},
        ),
        UploadSweepOperator(task_id="f", restricted=True),
    ]

    for task in tasks:
        task.pre_execute(TaskRun().context())


def test_the_one_function_that_is_allowed_as_text_is_that_of_dataset_commit() -> None:
    assert f'python_callable="{READ_FILES}"' in (dags_dir() / "dataset_commit.py").read_text()


def test_a_form_gives_sizes_of_spark_but_no_code() -> None:
    lists = allow_lists_of_defaults()
    for allowed in (
        {"driver_memory": "4g", "master": "local[4]", "spark_config": {"spark.executor.memory": "2g"}},
        {"driver_memory": None, "master": None, "spark_config": None, "packages": [""]},
    ):
        check_parameters(lists, allowed)
    for refused in (
        {"master": "spark://elsewhere:7077"},
        {"packages": ["org.example:evil:1.0"]},
        {"spark_config": {"spark.jars": "/tmp/evil.jar"}},
        {"spark_config": {"spark.hadoop.fs.s3a.endpoint": "http://elsewhere"}},
        {"spark_config": {"spark.sql.extensions": "a.Class"}},
        {"spark_config": {"spark.sql.variable.substitute": "true"}},
    ):
        with pytest.raises(InvalidInputError, match="LOCKGATE_TRIGGER_SPARK"):
            check_parameters(lists, refused)


@pytest.mark.parametrize("given", ["org.mine:a:1.0,org.example:evil:1.0", "org.example:evil:1.0"])
def test_each_package_of_a_list_must_be_allowed(given: str) -> None:
    lists = AllowLists(spark_settings=("spark.jars.packages=org.mine:*",))
    check_parameters(lists, {"packages": ["org.mine:a:1.0"]})

    for parameters in ({"packages": [given]}, {"spark_config": {"spark.jars.packages": given}}):
        with pytest.raises(InvalidInputError, match="LOCKGATE_TRIGGER_SPARK"):
            check_parameters(lists, parameters)


def test_an_audit_without_a_master_is_allowed_whatever_the_list_of_spark_has(
    restricted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKGATE_TRIGGER_SPARK", '["spark.executor.memory=*"]')
    handle = {**HANDLE, "destination": str(restricted)}

    AuditOperator(task_id="audit", restricted=True, job=handle).pre_execute(TaskRun().context())


def allow_lists_of_defaults() -> AllowLists:
    return AllowLists(spark_settings=Settings.model_fields["trigger_spark"].default)


def test_default_arguments_of_a_dag_restrict_all_its_operators_mapped_ones_too() -> None:
    with DAG("form", default_args={"restricted": True}):
        setup = JobSetupOperator(task_id="setup", destination="/lake")
        mapped: Any = TaskCommitOperator.partial(task_id="tasks", job={}).expand(task_ids=[["a"]])

    assert setup.restricted
    assert mapped.unmap({"task_ids": ["a"]}).restricted


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

    assert write._needs() == needs


@pytest.mark.parametrize(("is_restricted", "needs"), [(True, frozenset()), (False, ALL)])
def test_a_restricted_audit_in_spark_gets_no_credentials(
    is_restricted: bool, needs: frozenset[Part], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[SparkWork] = []
    monkeypatch.setattr(SparkChild, "run", lambda _, work: started.append(work))
    audit = AuditOperator(task_id="audit", restricted=is_restricted, job={}, engine="spark")

    audit._in_spark(StagedRows(root=Path("/s"), sha256={}, rows=None, chosen="", seen={}), {})

    assert [(work.needs, work.master) for work in started] == [(needs, "local[*]")]
