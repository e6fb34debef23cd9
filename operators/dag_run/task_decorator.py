"""`@task.lockgate`: a user's own function as a task with Airflow's connections, and with the job itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator, task_decorator_factory

from lockgate.operators.dag_run.job_handle import attach
from lockgate.operators.dag_run.operator import CONNECTIONS, LockgateOperator, task_entry

if TYPE_CHECKING:
    from airflow.sdk import Context

JOB = "job"
"""The parameter of a function that takes a handle, and gets the job."""


class FunctionOperator(DecoratedOperator, PythonOperator, LockgateOperator):
    """Calls the function of `@task.lockgate`.

    Attributes:
        job: Handle that the function's parameter `job` was given; None if it has none.
    """

    template_fields: Sequence[str] = (*CONNECTIONS, "templates_dict", "op_args", "op_kwargs")
    template_fields_renderers: ClassVar[dict[str, str]] = {
        "templates_dict": "json",
        "op_args": "py",
        "op_kwargs": "py",
    }
    custom_operator_name = "@task.lockgate"
    job: object = None

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        function: dict[str, Any] = {
            "python_callable": python_callable,
            "op_args": op_args,
            "op_kwargs": op_kwargs,
        }
        super().__init__(kwargs_to_upstream=function, **function, **kwargs)

    def pre_execute(self, context: Any) -> None:
        """Take the handle from the rendered arguments, for the button, the checks and a notifier."""
        given = inspect.signature(self.python_callable).bind_partial(*self.op_args, **self.op_kwargs)
        self.job = given.arguments.get(JOB)
        super().pre_execute(context)

    def form_values(self) -> dict[str, Any]:
        """Return what a restricted task checks: other arguments mean what the function makes of them."""
        return {JOB: self.job}

    @task_entry
    def execute(self, context: Context) -> Any:
        """Call the function, and return what it returns."""
        return super().execute(context)

    def determine_kwargs(self, context: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the function's keyword arguments, with the job in place of its handle."""
        kwargs = super().determine_kwargs(context)
        call = inspect.signature(self.python_callable).bind(*self.op_args, **kwargs)
        if JOB in call.arguments:
            call.arguments[JOB] = attach(call.arguments[JOB])
        self.op_args = call.args
        return call.kwargs


def lockgate_task(
    python_callable: Callable[..., Any] | None = None, multiple_outputs: bool | None = None, **kwargs: Any
) -> TaskDecorator:
    """Make a function a task that has the settings of Airflow's connections; `@task.lockgate`.

    `load_settings`, and so every call of Lockgate in the function, has the settings of `lockgate_conn_id` and
    `aws_conn_id`, as in an operator. A parameter with the name `job` is given the handle of a job,
    `write(setup.output)`, and gets the `Job` itself.

    Args:
        python_callable: The function.
        multiple_outputs: As for Airflow's `@task`.
        kwargs: Arguments of the operator, as for Airflow's `@task`, and `aws_conn_id`, `lockgate_conn_id`,
            `restricted`. A restricted task checks the destination of its job.
    """
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=multiple_outputs,
        decorated_operator_class=FunctionOperator,
        **kwargs,
    )
