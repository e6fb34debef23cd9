"""DAGs of the tests: a job without Spark, a DAG scheduled by its Asset, and the recovery that we ship."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset, Param, task

from lockgate.dags.job_recovery import dag as job_recovery
from lockgate.operators import JobAbortOperator, JobCommitOperator, JobSetupOperator, TaskCommitOperator
from lockgate.storage_core.failpoints import FAILPOINTS

__all__ = ["job_recovery"]

FILES = Asset("files", "file:///files")


@task(multiple_outputs=True)
def export(handle: dict[str, Any]) -> dict[str, Any]:
    """Stage three files as three tasks."""
    from lockgate import attach_job
    from lockgate.storage_core.commit.staged_files import group_into_tasks, list_staged
    from lockgate.storage_core.ids import new_job_attempt_id

    job = attach_job(handle["destination"], handle["job_id"], job_attempt=new_job_attempt_id())
    folder = Path(job.staging_dir, job.job_attempt)
    folder.mkdir(parents=True)
    for name in ("a", "b", "c"):
        (folder / f"{name}.txt").write_text(name)
    job.expect(group_into_tasks(list_staged(folder, marker=None), target_bytes=1), staging=str(folder))
    return {"job": {**handle, "job_attempt": job.job_attempt}}


def die_in_the_commit(context: Any) -> None:
    """Kill this task's process after the decision, if the run asks for it."""
    if context["params"]["kill"]:
        FAILPOINTS.arm({"complete.complete.before": "kill"})


with DAG(
    "job_files",
    schedule=None,
    params={"destination": Param(type="string"), "complete_by": Param("workers"), "kill": Param(False)},
) as dag:
    setup = JobSetupOperator(task_id="setup", destination=dag.param("destination"))
    exported: Any = export(setup.output)
    tasks = TaskCommitOperator(task_id="tasks", job=exported["job"], deferrable=True, grace_s=600)
    commit = JobCommitOperator(
        task_id="commit",
        job=exported["job"],
        complete_by=dag.param("complete_by"),
        deferrable=True,
        outlets=[FILES],
        pre_execute=die_in_the_commit,
    )
    abort = JobAbortOperator(task_id="abort", job=setup.output).as_teardown(setups=setup)
    setup >> exported >> tasks >> commit >> abort

with DAG("after_files", schedule=[FILES]):

    @task
    def read(triggering_asset_events: Any = None) -> list[str]:
        """Return the jobs whose events started this run."""
        return [event.extra["job_id"] for event in triggering_asset_events[FILES]]

    read()
