"""TaskCommitOperator: commit a job's tasks on Celery workers, mapped or all at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from lockgate.operators.dag_run.job_handle import (
    JobHandle,
    attach_open,
    suspend,
    suspended_after,
    suspended_on_failure,
)
from lockgate.operators.dag_run.log_tables import LoggedProgress, log_table
from lockgate.operators.dag_run.operator import LockgateOperator, task_entry, templated
from lockgate.operators.dag_run.page_links import job_address
from lockgate.operators.dag_run.parameters import from_template, seconds, seconds_or_none
from lockgate.operators.deferral import defer_until, is_deferrable, longest_suspension, remaining
from lockgate.storage_core.errors import InvalidInputError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from lockgate.storage_core.commit.job import Job


@templated
class TaskCommitOperator(LockgateOperator):
    """Sends the staged files of tasks to Celery workers, which upload them as pending uploads, and waits.

    Mapped, each map index takes a chunk: `.partial(job=write.output["job"]).expand(task_ids=write.output)`;
    unmapped, it takes every task of the job attempt. A task is not committed twice, so a retry does only what
    is missing.

    If it is deferrable, it sends everything at once and frees its slot. The job is suspended for at least
    `timeout_s` and 20 minutes, also when the task has ended: other mapped tasks may be deferred.

    Args:
        job: Handle of the job: `write.output["job"]`.
        task_ids: Ids of the tasks; None: all.
        timeout_s: Time limit for all of them together.
        grace_s: How long to wait for a worker if none listens.
        suspend_timeout_s: How long recovery leaves the job alone; None: `LOCKGATE_SUSPEND_TIMEOUT_S`.
        deferrable: Wait in the triggerer; None: Airflow's `[operators] default_deferrable`.

    Returns:
        Totals: `tasks`, `files`, `rows` (None if they are not known), `bytes`.
    """

    ui_color = "#e8f0fe"

    def __init__(
        self,
        *,
        job: JobHandle | Any,
        task_ids: Sequence[str] | None = None,
        timeout_s: float = 4 * 3600.0,
        grace_s: float = 60.0,
        suspend_timeout_s: float | None = None,
        deferrable: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.task_ids = task_ids
        self.timeout_s = timeout_s
        self.grace_s = grace_s
        self.suspend_timeout_s = suspend_timeout_s
        self.deferrable = deferrable

    @task_entry
    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002 - Airflow passes it by name
        """Commit the tasks and return their totals."""
        timeout_s, grace_s = seconds("timeout_s", self.timeout_s), seconds("grace_s", self.grace_s)
        suspend_timeout_s = self._suspend_timeout_s()
        job = attach_open(self.job)
        with suspended_on_failure(job, suspend_timeout_s, self.log):
            tasks = self._tasks(job)
        if tasks and is_deferrable(self.deferrable):
            suspend(job, suspend_timeout_s, self.log)
            self._defer(job, tasks, timeout_s, grace_s)
        return self._commit(job, tasks, timeout_s, grace_s)

    @task_entry
    def resume(
        self,
        context: Context,  # noqa: ARG002 - Airflow passes it
        event: dict[str, str],
        batch: str,
        deadline_s: float,
    ) -> dict[str, Any]:
        """Take the results of what was dispatched, and return the totals."""
        job = attach_open(self.job)
        timeout_s, grace_s = remaining(event, deadline_s, seconds("grace_s", self.grace_s))
        return self._commit(job, self._tasks(job), timeout_s, grace_s, batch=batch)

    def _defer(self, job: Job, tasks: list[str], timeout_s: float, grace_s: float) -> NoReturn:
        from lockgate.workers.celery_app import COMMIT_QUEUE
        from lockgate.workers.dispatch import dispatch_tasks

        batch = dispatch_tasks(job.destination, job.job_id, job.job_attempt, tasks, expires_s=timeout_s)
        self.log.info("job %s: %d task commits sent as batch %s", job.job_id, len(tasks), batch)
        waited = {"batch": batch, "count": len(tasks), "queue": COMMIT_QUEUE, "grace_s": grace_s}
        defer_until(self, "batch", waited, timeout_s=timeout_s, batch=batch)

    def _commit(
        self, job: Job, tasks: list[str], timeout_s: float, grace_s: float, *, batch: str | None = None
    ) -> dict[str, Any]:
        from lockgate.workers.dispatch import commit_tasks

        with suspended_after(job, self._suspend_timeout_s(), self.log):
            rows = commit_tasks(
                job.destination,
                job.job_id,
                job.job_attempt,
                tasks,
                timeout_s=timeout_s,
                grace_s=grace_s,
                progress=LoggedProgress(self.log),
                batch=batch,
            )
        shown = [(row["task_id"], row["files"], row["rows"], row["size"]) for row in rows]
        self.log.info("committed tasks:\n%s", log_table(("task", "files", "rows", "bytes"), shown))
        self.log.info("their job's page: %s", job_address(job.destination, job.job_id))
        return _totals(rows)

    def _suspend_timeout_s(self) -> float | None:
        given = seconds_or_none("suspend_timeout_s", self.suspend_timeout_s)
        if not is_deferrable(self.deferrable):
            return given
        # Also when a mapped task ends: others of the same job may be deferred, for as long from now at most.
        return longest_suspension(given, seconds("timeout_s", self.timeout_s))

    def _tasks(self, job: Job) -> list[str]:
        if self.task_ids is not None:
            return [str(task) for task in from_template(self.task_ids)]
        expected = job.expected()
        if expected is None:
            raise InvalidInputError(
                f"job {job.job_id}, attempt {job.job_attempt}: there is no frozen list of tasks; nothing was "
                'committed; pass the job of SparkWriteOperator, `job=write.output["job"]`'
            )
        # Without a stage, Spark has written the files into uploads, and their tasks have committed.
        return [task.task_id for task in expected.tasks] if expected.staging is not None else []


def _totals(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    counts = [row["rows"] for row in rows]
    return {
        "tasks": len(rows),
        "files": sum(row["files"] for row in rows),
        "rows": None if None in counts else sum(counts),
        "bytes": sum(row["size"] for row in rows),
    }
