"""Defer a task until a condition holds, and resume it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NoReturn

from lockgate.storage_core.settings import load_settings

if TYPE_CHECKING:
    from lockgate.operators.dag_run.operator import LockgateOperator

POLL_S: Final = 2.0
EXECUTOR_S: Final = 10.0
"""How long a task stays deferred at least: Airflow 3.3 fails a task that runs again before its executor has
reported the end of the process that deferred it."""
MARGIN_S: Final = 600.0
"""How much longer than the deadline Airflow waits for the trigger, whose triggerer may be restarting."""


def defer_until(
    operator: LockgateOperator,
    condition: str,
    arguments: Mapping[str, Any],
    *,
    timeout_s: float,
    poll_s: float = POLL_S,
    **kwargs: Any,
) -> NoReturn:
    """Free the slot of a task until a condition holds, then call its method `resume`.

    Args:
        operator: The task.
        condition: Name of the condition.
        arguments: Its arguments.
        timeout_s: How long to wait.
        poll_s: Seconds between two questions.
        kwargs: Arguments of `resume`; it also gets `deadline_s`.
    """
    from lockgate.operators.condition_trigger import ConditionTrigger

    now_s = time.time()
    deadline_s = now_s + timeout_s
    trigger = ConditionTrigger(
        condition,
        arguments,
        not_before_s=now_s + EXECUTOR_S,
        deadline_s=deadline_s,
        poll_s=poll_s,
        aws_conn_id=operator.aws_conn_id,
        lockgate_conn_id=operator.lockgate_conn_id,
    )
    operator.defer(
        trigger=trigger,
        method_name="resume",
        kwargs={**kwargs, "deadline_s": deadline_s},
        timeout=timedelta(seconds=timeout_s + MARGIN_S),
    )


def is_deferrable(deferrable: bool | None) -> bool:
    """Return the operator's option; None: Airflow's `[operators] default_deferrable`."""
    if deferrable is None:
        from airflow.sdk.configuration import conf

        return bool(conf.getboolean("operators", "default_deferrable", fallback=False))
    return deferrable


def remaining(event: Mapping[str, str], deadline_s: float, grace_s: float) -> tuple[float, float]:
    """Return time limit and grace time of a resumed task, which gathers what was dispatched.

    Args:
        event: Event of the trigger.
        deadline_s: Deadline of the wait.
        grace_s: Grace time of the task; the trigger has waited for it if no worker listens.
    """
    from lockgate.operators.condition_trigger import NO_WORKER

    return max(deadline_s - time.time(), 0.0), 0.0 if event["why"] == NO_WORKER else grace_s


def longest_suspension(suspend_timeout_s: float | None, timeout_s: float) -> float:
    """Return how long a job is suspended while its task is deferred: until Airflow has given the task up."""
    suspend_s = load_settings().suspend_timeout_s if suspend_timeout_s is None else suspend_timeout_s
    return max(suspend_s, timeout_s + 2 * MARGIN_S)
