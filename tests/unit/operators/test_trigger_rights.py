"""Tests of restricted operators: what each refuses and accepts."""

from __future__ import annotations

import json
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
    announce,
)
from lockgate.operators.trigger_rights import READ_FILES, AllowLists, check_parameters, check_suite
from lockgate.storage_core.commit.open_or_attach import open_job
from lockgate.storage_core.commit.recovery import expired_jobs
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.settings import Settings
from tests.support.airflow.task_run import TaskRun


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
IN_LAKE = {"job": {**HANDLE, "destination": "{lake}"}}
READ = {**IN_LAKE, "python_callable": READ_FILES}

EVIL = "org.example.Evil"
FORBIDDEN: list[tuple[Any, dict[str, Any], str]] = [
    (JobSetupOperator, {"destination": "{lake}/../x"}, "LOCKGATE_TRIGGER_DESTINATIONS"),
    (JobSetupOperator, {"destination": "{lake}", "staging": "/etc"}, "LOCKGATE_STAGING_ROOTS"),
    (JobSetupOperator, {"destination": "{lake}", "artefacts": {"job_id": "x"}}, "LIBRARIES allows nothing"),
    (BlobUploadOperator, {"files": ["/etc/passwd"]}, "LOCKGATE_TRIGGER_LIBRARIES"),
    (TaskCommitOperator, {"job": HANDLE}, "LOCKGATE_TRIGGER_DESTINATIONS"),
    (AuditOperator, {**IN_LAKE, "suite": "/etc/passwd"}, "suite.to_json_dict"),
    (AuditOperator, {**IN_LAKE, "master": "spark://elsewhere:7077"}, "LOCKGATE_TRIGGER_SPARK"),
    (SparkWriteOperator, {**READ, "spark_config": {"spark.jars": "/tmp/a.jar"}}, "LOCKGATE_TRIGGER_SPARK"),
    (SparkWriteOperator, {**READ, "op_kwargs": {"source": "/etc/passwd"}}, "LOCKGATE_TRIGGER_SOURCES"),
    (SparkWriteOperator, {**READ, "op_kwargs": {"transform": "os:system"}}, "LOCKGATE_TRIGGER_TRANSFORMS"),
    (SparkWriteOperator, {**IN_LAKE, "python_callable": "os:system"}, "LOCKGATE_TRIGGER_TRANSFORMS"),
    (
        SparkWriteOperator,
        {**READ, "op_kwargs": {"source_options": {"codec": EVIL}}},
        f"codec='{EVIL}' is not",
    ),
    (SparkWriteOperator, {**READ, "options": {"Path": "/etc"}}, "options: 'Path' is not allowed"),
    (
        AuditOperator,
        {**IN_LAKE, "options": {"fs.s3a.endpoint": "http://x"}},
        "'fs.s3a.endpoint' is not allowed",
    ),
    (AuditOperator, {**IN_LAKE, "options": {"Compression": EVIL}}, f"Compression='{EVIL}' is not allowed"),
    (AuditOperator, {**IN_LAKE, "data_docs": "/etc/cron.d"}, "data_docs '/etc/cron.d' is not allowed"),
    (JobRecoveryOperator, {"destinations": "{lake}, s3://other"}, "s3://other"),
    (UploadSweepOperator, {"destinations": ["s3://other"]}, "LOCKGATE_TRIGGER_DESTINATIONS"),
]


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


def test_a_form_may_recover_a_job_that_the_journal_has_wherever_it_is_and_no_other(
    restricted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKGATE_HOME", str(tmp_path / "home"))
    elsewhere = str(tmp_path / "elsewhere")
    job = open_job(elsewhere, "sales")
    job.suspend(0)
    named = {"task_id": "task", "restricted": True, "destination": elsewhere, "job_id": job.job_id}

    recover, announced = JobRecoveryOperator(**named), JobAnnounceOperator(**named)
    for task in (recover, announced):
        task.pre_execute(TaskRun().context())
    assert recover.execute(TaskRun().context()) == {"abort": 1}
    for task in (
        JobRecoveryOperator(**named, abort_reason="not mine"),
        JobRecoveryOperator(**{**named, "job_id": "other-g1"}),
        JobRecoveryOperator(**{**named, "destination": str(tmp_path / "third")}),
        JobAnnounceOperator(**{**named, "job_id": None}),
    ):
        with pytest.raises(AirflowFailException, match="LOCKGATE_TRIGGER_DESTINATIONS"):
            task.pre_execute(TaskRun().context())


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


def allow_lists_of_defaults() -> AllowLists:
    return AllowLists(spark_settings=Settings().trigger_spark)


def test_default_arguments_of_a_dag_restrict_all_its_operators_mapped_ones_too() -> None:
    with DAG("form", default_args={"restricted": True}):
        setup = JobSetupOperator(task_id="setup", destination="/lake")
        mapped: Any = TaskCommitOperator.partial(task_id="tasks", job={}).expand(task_ids=[["a"]])

    assert setup.restricted
    assert mapped.unmap({"task_ids": ["a"]}).restricted
