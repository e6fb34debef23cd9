"""Every parameter of an operator is a template field, and what a template renders to is understood."""

from __future__ import annotations

import inspect
import logging
from typing import Any

import pytest
from airflow.sdk import DAG, BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from lockgate import operators
from lockgate.operators.audit import AuditOperator
from lockgate.operators.blobs import BlobSweepOperator, BlobUploadOperator
from lockgate.operators.dag_run.operator import CLIENT_LOGGERS, LockgateOperator
from lockgate.operators.dag_run.parameters import check_bool, filled_in, positive, seconds, seconds_or_none
from lockgate.operators.files import VolumeUpkeepOperator
from lockgate.operators.jobs import JobCommitOperator, JobSetupOperator
from lockgate.operators.recovery import JobRecoveryOperator
from lockgate.operators.spark import SparkWriteOperator
from lockgate.operators.tasks import TaskCommitOperator
from lockgate.storage_core.errors import InvalidInputError
from tests.support.airflow.task_run import TaskRun
from tests.support.commit.destination import World

OPERATORS: list[Any] = [
    getattr(operators, name) for name in operators.__all__ if name.endswith(("Operator", "Sensor"))
]


def parameters(operator: Any) -> dict[str, inspect.Parameter]:
    """Return the parameters of an operator and of the base of all."""
    return {
        name: parameter
        for initialiser in (LockgateOperator.__init__, operator.__init__)
        for name, parameter in inspect.signature(initialiser).parameters.items()
        if name not in {"self", "kwargs"}
    }


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.__name__)
def test_every_parameter_but_two_is_a_template_field_and_shown_as_json_if_it_is_nested(operator: Any) -> None:
    """Airflow decides where a task waits before it renders templates; no template decides what is checked."""
    taken = parameters(operator)
    assert set(taken) - {"deferrable", "restricted"} == set(operator.template_fields)
    nested = {
        name
        for name in operator.template_fields
        if any(kind in str(taken[name].annotation) for kind in ("Mapping", "Sequence", "Suite", "Handle"))
    }
    assert {name for name in nested if operator.template_fields_renderers.get(name) != "json"} == set()


def returned(frame: Any) -> Any:
    return frame


def test_a_function_in_a_template_field_stays_a_function() -> None:
    write: Any = SparkWriteOperator(task_id="write", job={}, python_callable=returned)
    audit: Any = AuditOperator(task_id="audit", job={}, suite=returned, format="{{ params.format }}")

    write.render_template_fields({})
    audit.render_template_fields({"params": {"format": "csv"}})

    assert (write.python_callable, audit.suite, audit.format) == (returned, returned, "csv")


def test_a_function_of_a_mapped_task_stays_a_function() -> None:
    with DAG("mapped"):
        mapped: Any = SparkWriteOperator.partial(task_id="write", job={}, python_callable=returned).expand(
            op_kwargs=[{"day": 1}]
        )
    write = mapped.unmap({"op_kwargs": {"day": "{{ ds }}"}})

    write._do_render_template_fields(
        write, write.template_fields, {"ds": "x"}, mapped.get_template_env(), set()
    )

    assert (write.python_callable, write.op_kwargs) == (returned, {"day": "x"})


@pytest.mark.parametrize(
    ("operator", "options", "message"),
    [
        (JobSetupOperator, {"audit": "False"}, "audit='False' is neither true nor false"),
        (JobSetupOperator, {"suspend_timeout_s": "soon"}, "suspend_timeout_s='soon' is not a number"),
        (JobCommitOperator, {"timeout_s": "-1"}, "timeout_s='-1' must be seconds, 0 or more"),
        (TaskCommitOperator, {"grace_s": "nan"}, "grace_s='nan' must be seconds"),
        (SparkWriteOperator, {"task_mib": "big"}, "task_mib='big' is not a number"),
        (SparkWriteOperator, {"chunks": "0"}, "chunks='0' must be a whole number, 1 or more"),
        (BlobUploadOperator, {"recreatable": "False"}, "recreatable='False' is neither"),
        (
            JobCommitOperator,
            {"complete_by": "all"},
            "complete_by='all': must be one of auto, threads, workers",
        ),
        (JobRecoveryOperator, {"recover_by": "all"}, "recover_by='all': must be one of"),
        (BlobSweepOperator, {"sweep_by": "all"}, "sweep_by='all': must be one of"),
        (VolumeUpkeepOperator, {"repair": "all"}, "repair='all' is neither"),
    ],
)
def test_text_that_a_template_renders_to_is_refused_by_the_name_of_its_parameter(
    world: World, operator: type[BaseOperator], options: dict[str, Any], message: str
) -> None:
    context = TaskRun().context()
    handle = JobSetupOperator(task_id="setup", destination=world.url).execute(context)
    required: dict[Any, dict[str, Any]] = {
        JobSetupOperator: {"destination": world.url, "write_name": "other"},
        SparkWriteOperator: {"job": handle, "python_callable": "m:f"},
        BlobUploadOperator: {"files": "/no/such/file"},
        **{kind: {} for kind in (JobRecoveryOperator, BlobSweepOperator, VolumeUpkeepOperator)},
    }
    task = operator(task_id="task", **required.get(operator, {"job": handle}), **options)

    with pytest.raises(AirflowFailException, match=f"InvalidInputError.*{message}.*nothing was done"):
        task.execute(context)


def test_blank_lines_of_a_form_are_no_paths_and_no_columns() -> None:
    assert filled_in(["a.whl", "", "  "]) == ["a.whl"]
    assert (filled_in(None), filled_in(""), filled_in([""]), filled_in("a")) == ([], [], [], ["a"])


def test_numbers_in_text_are_numbers() -> None:
    assert (seconds("s", "1.5"), seconds("s", 2), seconds_or_none("s", "None")) == (1.5, 2.0, None)
    assert (seconds_or_none("s", None), seconds_or_none("s", ""), seconds_or_none("s", "3")) == (
        None,
        None,
        3,
    )
    assert (positive("n", "64"), positive("n", 1), check_bool("b", True)) == (64, 1, True)
    for refused in (True, None, "1.5", [1]):
        with pytest.raises(InvalidInputError):
            positive("n", refused)  # type: ignore[arg-type]


@pytest.mark.parametrize("nothing", [None, "", [], ["", " "]])
def test_an_emptied_field_of_files_uploads_nothing(nothing: Any) -> None:
    assert BlobUploadOperator(task_id="libraries", files=nothing).execute({}) is None  # type: ignore[arg-type]


@pytest.fixture
def levels() -> Any:
    before = {name: logging.getLogger(name).level for name in CLIENT_LOGGERS}
    for name in before:
        logging.getLogger(name).setLevel(logging.NOTSET)
    yield
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)


@pytest.mark.usefixtures("levels")
def test_store_clients_do_not_fill_the_tasks_log_unless_the_user_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW__LOGGING__NAMESPACE_LEVELS", "urllib3.connectionpool=DEBUG, airflow=INFO")
    logging.getLogger("s3transfer").setLevel(logging.DEBUG)

    JobSetupOperator(task_id="setup", destination="/x").pre_execute(TaskRun().context())

    said = {name: logging.getLogger(f"{name}.part").getEffectiveLevel() for name in ("botocore", "boto3")}
    assert said == {"botocore": logging.WARNING, "boto3": logging.WARNING}
    assert logging.getLogger("urllib3").level == logging.NOTSET
    assert logging.getLogger("s3transfer").level == logging.DEBUG
