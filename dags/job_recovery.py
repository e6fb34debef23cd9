"""Every five minutes: jobs whose driver is gone are rolled forward, resumed or aborted."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from operators.jobs import JobRecoveryOperator

with DAG(
    "job_recovery",
    description=__doc__,
    schedule=timedelta(minutes=5),
    catchup=False,
    max_active_runs=1,
    tags=["lockgate"],
    params={
        "destinations": Param(
            None,
            type=["null", "string"],
            title="Destinations",
            description="URLs or paths with commas between them; none: LOCKGATE_DESTINATIONS, or the Airflow "
            "Variable lockgate_destinations.",
        ),
        "dry_run": Param(False, type="boolean", title="Only tell what would be done"),
    },
    doc_md="""
Finishes what was decided and killed, and takes back what lapsed undecided. Several runs at once are harmless.
Fails if a job is in a state in which nothing may be touched: then look by hand.
""",
) as dag:
    JobRecoveryOperator(
        task_id="recover", destinations=dag.param("destinations"), report_only=dag.param("dry_run")
    )
