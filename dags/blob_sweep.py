"""Every retention interval: blobs that nothing has referred to for a whole one are deleted."""

from __future__ import annotations

from airflow.sdk import DAG, Param

from lockgate.operators.blobs import BlobSweepOperator, sweep_interval

with DAG(
    "blob_sweep",
    description=__doc__,
    schedule=sweep_interval(),
    catchup=False,
    max_active_runs=1,
    tags=["lockgate"],
    params={
        "orphans": Param(
            None,
            type=["null", "boolean"],
            title="List the stores for bytes that no row knows",
            description="Empty: once a day, and after a crash.",
        ),
        "dry_run": Param(False, type="boolean", title="Only tell what would go"),
    },
    doc_md="""
Deletes artefacts, messages and logs that nothing has referred to for a whole `LOCKGATE_RETENTION_INTERVAL_S`:
whatever is not referred to lives one to two of these. Jobs that have ended leave nothing. Sweeps at once do
no harm. One table in the log says what went, and why; its XCom says how many blobs, and their bytes.
""",
) as dag:
    BlobSweepOperator(task_id="sweep", report_only=dag.param("dry_run"), orphans=dag.param("orphans"))
