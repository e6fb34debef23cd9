"""Run an operator with the settings of Airflow connections.

Connections are read in the task, when it runs. Their settings apply to this task only: they are in no
environment, XCom value, record or message.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from lockgate.operators.dag_run.operator import LockgateOperator

P = ParamSpec("P")
R = TypeVar("R")
Operator = TypeVar("Operator", bound=LockgateOperator)


def with_connections(
    execute: Callable[Concatenate[Operator, P], R],
) -> Callable[Concatenate[Operator, P], R]:
    """Decorate a method: while it runs, `load_settings` returns the settings of the connections.

    At its end the event logs of jobs are closed, because Airflow ends a task's process without Python's exit
    handlers.
    """

    @wraps(execute)
    def connected(self: Operator, /, *args: P.args, **kwargs: P.kwargs) -> R:
        from lockgate.operators.connections.read import connections  # noqa: PLC0415 - at run time only
        from lockgate.storage_core.commit.job_events import end_logs  # noqa: PLC0415 - at run time only

        with connections(self.aws_conn_id, self.lockgate_conn_id):
            try:
                return execute(self, *args, **kwargs)
            finally:
                end_logs()

    return connected
