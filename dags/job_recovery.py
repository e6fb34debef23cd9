"""Finish or abort jobs whose driver is gone."""

from __future__ import annotations

from airflow.sdk import DAG, Param

from lockgate.operators.recovery import JobRecoveryOperator, recovery_interval

with DAG(
    "job_recovery",
    description=__doc__,
    schedule=recovery_interval(),
    catchup=False,
    max_active_runs=1,
    tags=["lockgate"],
    params={
        "destinations": Param(
            None,
            type=["null", "string"],
            title="Destinations",
            description="URLs or paths, separated by commas. Empty: all in the journal, and those of "
            "LOCKGATE_DESTINATIONS or the Airflow Variable lockgate_destinations.",
        ),
        "dry_run": Param(False, type="boolean", title="Only report what would be done"),
    },
    doc_md="""
Runs every five minutes (`LOCKGATE_RECOVERY_MINUTES`). Finishes decided jobs, and aborts or resumes undecided
jobs whose lease has expired; running and parked jobs are left alone. Concurrent runs are harmless. A table in
the log lists what was done with each job. Fails only if an operator must act: a job's records contradict each
other, or a destination cannot be reached.
""",
) as dag:
    JobRecoveryOperator(
        task_id="recover", destinations=dag.param("destinations"), report_only=dag.param("dry_run")
    )
