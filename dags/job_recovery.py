"""Every five minutes, or as LOCKGATE_RECOVERY_MINUTES says: jobs whose driver is gone are settled."""

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
            description="URLs or paths with commas between them; none: all that the journal knows, and those "
            "of LOCKGATE_DESTINATIONS, or the Airflow Variable lockgate_destinations.",
        ),
        "dry_run": Param(False, type="boolean", title="Only tell what would be done"),
    },
    doc_md="""
Finishes what was decided and killed, and takes back or resumes what lapsed undecided; jobs that live or are
parked are left alone. Several runs at once are harmless. One table in the log says what became of each job.
Fails only where a person has to look: a job whose records contradict each other, a destination that cannot be
reached.
""",
) as dag:
    JobRecoveryOperator(
        task_id="recover", destinations=dag.param("destinations"), report_only=dag.param("dry_run")
    )
