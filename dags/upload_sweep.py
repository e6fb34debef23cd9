"""Every hour: uploads that nothing will ever complete are aborted."""

from __future__ import annotations

from airflow.sdk import DAG, Param

from lockgate.operators.sweep import UploadSweepOperator

with DAG(
    "upload_sweep",
    description=__doc__,
    schedule="@hourly",
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
Takes uploads of jobs that have ended, and those without an owner that two sweeps have seen, a day apart.
Never one whose job may still commit. Its log names every upload with the reason; its XCom says, for each
destination and action, how many there are, their bytes, and about what they cost a month.
""",
) as dag:
    UploadSweepOperator(
        task_id="sweep", destinations=dag.param("destinations"), report_only=dag.param("dry_run")
    )
