"""Delete blobs that had no reference for a whole retention interval."""

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
            title="List the stores for bytes without a row",
            description="Empty: once a day, and after an uploader has died.",
        ),
        "dry_run": Param(False, type="boolean", title="Only report what would be deleted"),
    },
    doc_md="""
Runs every `LOCKGATE_RETENTION_INTERVAL_S` and deletes artefacts, messages and logs that had no reference for
a whole interval; an unreferenced blob lives for one to two intervals. It also deletes the blobs of ended
jobs. Concurrent sweeps are harmless. A table in the log lists what was deleted and why; the XCom value has
the number of blobs and their bytes.
""",
) as dag:
    BlobSweepOperator(task_id="sweep", report_only=dag.param("dry_run"), orphans=dag.param("orphans"))
