"""JobNotifier: report the state of a task's job when the task fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseNotifier
from airflow.sdk.exceptions import AirflowNotFoundException

from lockgate.operators.connections import lockgate_connection
from lockgate.operators.dag_run.job_handle import check_handle
from lockgate.operators.dag_run.operator import CONNECTIONS
from lockgate.storage_core.commit.recovery.recover import recover_job
from lockgate.storage_core.errors import InvalidInputError, LockgateError
from lockgate.storage_core.settings import load_settings

if TYPE_CHECKING:
    from airflow.sdk import Context


class JobNotifier(BaseNotifier):
    """Reports the job of a failed task: its phase, its turn, what recovery will do with it, and its address.

    `on_failure_callback=JobNotifier()` writes the text to the task's log. With another notifier, that one
    sends it: `JobNotifier(SmtpNotifier(to="…", html_content="<pre>{{ lockgate_job }}</pre>"))`. Airflow runs
    the callbacks of a task in its process, so a task that was killed runs none.

    Args:
        notifier: Notifier of any provider, whose templates use `{{ lockgate_job }}`; None: only the log.
    """

    def __init__(self, notifier: BaseNotifier | None = None) -> None:
        super().__init__()
        self.notifier = notifier

    def notify(self, context: Context) -> None:
        """Write the text to the log, and call the other notifier with it."""
        text = describe(context)
        self.log.error("%s", text)
        if self.notifier is not None:
            self.notifier({**context, "lockgate_job": text})


def describe(context: Context) -> str:
    """Return the state of a task's job as text; an error while it is read becomes part of the text."""
    ti, reason = context["ti"], context.get("exception")
    failed = f"task {ti.task_id} of {ti.dag_id}, run {ti.run_id}, failed" + (f": {reason}" if reason else "")
    task = context.get("task")
    try:
        handle = check_handle(getattr(task, "job", None))
    except InvalidInputError:
        return f"{failed}\nIt has no job yet."
    address = f"{handle['destination']} {handle['job_id']}"
    try:
        with lockgate_connection(**{name: getattr(task, name, None) for name in CONNECTIONS}):
            found = recover_job(
                handle["destination"], handle["job_id"], dry_run=True, settings=load_settings()
            )
    except (LockgateError, AirflowNotFoundException) as error:
        state = f"its state cannot be read: {type(error).__name__}: {error}"
    else:
        turn = "has no turn" if found.receipt is None else f"has turn {found.receipt.turn}"
        state = (
            f"it is {found.found or 'unreadable'}, its lease is {found.lease}, it {turn}; "
            f"job_recovery would now: {found.action} ({found.detail})"
        )
    return (
        f"{failed}\nJob {handle['job_id']} at {handle['destination']}: {state}\n"
        f"To look: `lockgate jobs show {address}`"
    )
