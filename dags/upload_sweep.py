"""Abort orphaned uploads."""

from __future__ import annotations

from airflow.sdk import DAG, Param

from lockgate.operators.uploads import UploadSweepOperator

with DAG(
    "upload_sweep",
    description=__doc__,
    schedule="@hourly",
    catchup=False,
    max_active_runs=1,
    tags=["lockgate"],
    default_args={"restricted": True},  # the form may name only destinations that the settings allow
    params={
        "destinations": Param(
            None,
            type=["null", "string"],
            title="Destinations",
            description="URLs or paths, separated by commas. Empty: those of LOCKGATE_DESTINATIONS or the "
            "Airflow Variable lockgate_destinations.",
        ),
        "dry_run": Param(False, type="boolean", title="Only report what would be done"),
    },
    doc_md="""
Runs hourly. Aborts the uploads of ended jobs, and uploads without an owner that two sweeps, a day apart, have
found; never one whose job may still commit. The log lists every upload with the reason; the XCom value has
the number of uploads, their bytes and their approximate monthly cost, for each destination and action.
""",
) as dag:
    UploadSweepOperator(
        task_id="sweep", destinations=dag.param("destinations"), report_only=dag.param("dry_run")
    )
