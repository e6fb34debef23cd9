"""Close appendable files whose writers are gone."""

from __future__ import annotations

from airflow.sdk import DAG, Param

from lockgate.operators.files import LeaseRecoveryOperator
from lockgate.operators.recovery import recovery_interval

with DAG(
    "lease_recovery",
    description=__doc__,
    schedule=recovery_interval(),
    catchup=False,
    max_active_runs=1,
    tags=["lockgate"],
    params={"dry_run": Param(False, type="boolean", title="Only report what would be done")},
    doc_md="""
Runs every five minutes (`LOCKGATE_RECOVERY_MINUTES`). Closes each appendable file whose writer has ended, at
one length on all members, and removes the blocks of deleted files. A file whose writer is alive is left
alone. Concurrent runs are harmless. The task's log names each file. Fails only if too few volumes of a file
answered.
""",
) as dag:
    LeaseRecoveryOperator(task_id="recover", report_only=dag.param("dry_run"))
