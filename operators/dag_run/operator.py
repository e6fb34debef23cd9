"""Base class of the operators, and what surrounds each of their methods that Airflow calls in a task."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from airflow.sdk import BaseOperator, BaseOperatorLink
from airflow.sdk.exceptions import AirflowFailException

from lockgate.operators.dag_run.page_links import PageLink
from lockgate.storage_core.errors import (
    ArtefactsGoneError,
    AuditFailedError,
    InvalidInputError,
    JobFailedError,
    JournalVersionError,
    MalformedRecordError,
    RecordVersionError,
    UnsupportedStoreError,
)

CLIENT_LOGGERS: Final = ("awscrt", "boto3", "botocore", "s3transfer", "urllib3")
"""Loggers of clients that report each call, credential and connection below the level WARNING."""
CONNECTIONS: Final = ("aws_conn_id", "lockgate_conn_id")
"""Template fields of every operator."""
UNTEMPLATED: Final = frozenset({"deferrable"})
"""Airflow decides where a task waits before it renders templates."""
JSON: Final = (
    *("artefacts", "columns", "destinations", "files", "job", "op_kwargs", "options", "packages"),
    *("partition_by", "partitions", "spark_config", "suite", "tables", "task_ids"),
)
"""Parameters that are lists or mappings, shown as JSON."""
NOT_RETRYABLE: Final = (
    InvalidInputError,
    MalformedRecordError,
    UnsupportedStoreError,
    AuditFailedError,
    JobFailedError,
    ArtefactsGoneError,
)
"""Errors that no retry changes."""
UPGRADING: Final = (JournalVersionError, RecordVersionError)
"""Of these, errors during an upgrade: another machine may have the newer version."""


class LockgateOperator(BaseOperator):
    """Base of Lockgate's operators; `templated` makes each parameter a template field.

    A function stays a function: Airflow calls a callable in a template field and keeps what it returns, but
    these operators want the function itself.

    Args:
        aws_conn_id: Airflow connection of type `aws`, from which S3's credentials, endpoint and region are
            taken; None: the one that the Lockgate connection names, else those of the environment.
        lockgate_conn_id: Airflow connection of type `lockgate`; None: `lockgate_default` if it exists. What
            it leaves empty is taken from the environment.
        restricted: The parameters come from the form of a DAG: refuse what the settings `LOCKGATE_TRIGGER_…`
            do not allow, because a user who may trigger the DAG does not have the rights of its worker. For
            all operators of a DAG: `default_args={"restricted": True}`.
    """

    operator_extra_links: Collection[BaseOperatorLink] = (PageLink(),)
    template_fields: Collection[str] = CONNECTIONS
    template_fields_renderers = dict.fromkeys(JSON, "json")

    def __init__(
        self,
        *,
        aws_conn_id: str | None = None,
        lockgate_conn_id: str | None = None,
        restricted: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.aws_conn_id = aws_conn_id
        self.lockgate_conn_id = lockgate_conn_id
        self.restricted = restricted

    def pre_execute(self, context: Any) -> None:
        """Check a form's values, show the task's page, and keep store clients' chatter out of its log."""
        quiet_clients()
        if self.restricted:
            from lockgate.operators.connections import lockgate_connection
            from lockgate.operators.trigger_rights import allow_lists, check_parameters

            connection = lockgate_connection(self.lockgate_conn_id, aws_conn_id=self.aws_conn_id)
            with fail_without_retry(), connection:
                check_parameters(allow_lists(), self.form_values())
        self.push_links(context)
        super().pre_execute(context)

    def form_values(self) -> dict[str, Any]:
        """Return the rendered parameters that a restricted task checks, by name."""
        return {name: getattr(self, name) for name in self.template_fields}

    def push_links(self, context: Any) -> None:
        """Store the addresses of this task's buttons, which Airflow does only when a task ends."""
        for link in self.operator_extra_links:
            if isinstance(link, PageLink):
                context["ti"].xcom_push(link.xcom_key, link.get_link(self))

    def _do_render_template_fields(
        self, parent: Any, template_fields: Iterable[str], *arguments: Any, **named: Any
    ) -> None:
        # Airflow calls this for mapped tasks, too; `render_template_fields` only for unmapped ones.
        rendered = [name for name in template_fields if not callable(getattr(parent, name, None))]
        super()._do_render_template_fields(parent, rendered, *arguments, **named)


def quiet_clients() -> None:
    """Set the loggers of store clients to WARNING, unless the user has set their level.

    Users set it in Python's logging configuration, or name the logger in Airflow's `[logging]
    namespace_levels`.
    """
    from airflow.sdk.configuration import conf

    pairs = re.split(r"[\s,]+", conf.get("logging", "namespace_levels", fallback=None) or "")
    asked = {pair.partition("=")[0].partition(".")[0] for pair in pairs}
    for name in CLIENT_LOGGERS:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET and name not in asked:
            logger.setLevel(logging.WARNING)


@contextmanager
def fail_without_retry() -> Iterator[None]:
    """Fail the task without retries on an error that a retry cannot change; raise others unchanged.

    Every step is safe to repeat, so all other errors may be retried.

    Raises:
        AirflowFailException: Instead of an error in `NOT_RETRYABLE`, with its type and message.
    """
    try:
        yield
    except UPGRADING:
        raise
    except NOT_RETRYABLE as error:
        raise AirflowFailException(f"{type(error).__name__}: {error}") from error


P = ParamSpec("P")
R = TypeVar("R")
Operator = TypeVar("Operator", bound=LockgateOperator)
OperatorClass = TypeVar("OperatorClass", bound=type[LockgateOperator])


def templated(operator: OperatorClass) -> OperatorClass:
    """Decorate an operator whose every parameter may be a template, and is assigned by its `__init__`."""
    own = inspect.signature(operator.__init__).parameters.values()
    names = [one.name for one in own if one.kind is one.KEYWORD_ONLY and one.name not in UNTEMPLATED]
    operator.template_fields = (*CONNECTIONS, *names)
    return operator


def task_entry(execute: Callable[Concatenate[Operator, P], R]) -> Callable[Concatenate[Operator, P], R]:
    """Decorate a method that Airflow calls in a task: `execute`, `resume` or `poke`.

    While it runs, `load_settings` returns the settings of the operator's connections, which are in no
    environment, XCom value, record or message. An error that a retry cannot change fails the task at once.
    """

    @wraps(execute)
    def entered(self: Operator, /, *args: P.args, **kwargs: P.kwargs) -> R:
        from lockgate.operators.connections import lockgate_connection

        connection = lockgate_connection(self.lockgate_conn_id, aws_conn_id=self.aws_conn_id)
        with fail_without_retry(), connection:
            return execute(self, *args, **kwargs)

    return entered
