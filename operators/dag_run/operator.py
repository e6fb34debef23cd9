"""Base class of the operators: parameters that are templates, and a readable task log."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable
from typing import Any, Final

from airflow.sdk import BaseOperator, BaseOperatorLink

from lockgate.operators.dag_run.page_links import PageLink
from lockgate.operators.dag_run.retries import fail_without_retry

CLIENT_LOGGERS: Final = ("awscrt", "boto3", "botocore", "s3transfer", "urllib3")
"""Loggers of clients that report each call, credential and connection below the level WARNING."""
CONNECTIONS: Final = ("aws_conn_id", "lockgate_conn_id")
"""Template fields of every operator."""


class LockgateOperator(BaseOperator):
    """Base of Lockgate's operators: each parameter is a template field.

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
            from lockgate.operators.trigger_rights.allow_lists import (  # noqa: PLC0415 - at run time only
                allow_lists,
            )
            from lockgate.operators.trigger_rights.parameters import check_parameters  # noqa: PLC0415

            with fail_without_retry():
                check_parameters(allow_lists(), {name: getattr(self, name) for name in self.template_fields})
        self.push_links(context)
        super().pre_execute(context)

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
    from airflow.sdk.configuration import conf  # noqa: PLC0415 - read when a task runs

    pairs = re.split(r"[\s,]+", conf.get("logging", "namespace_levels", fallback=None) or "")
    asked = {pair.partition("=")[0].partition(".")[0] for pair in pairs}
    for name in CLIENT_LOGGERS:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET and name not in asked:
            logger.setLevel(logging.WARNING)
