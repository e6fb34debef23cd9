"""Delete appendable files by path pattern and age."""

from __future__ import annotations

from airflow.sdk import DAG, Param

from lockgate.operators.files import FileRetentionOperator

with DAG(
    "retention",
    description=__doc__,
    schedule="@daily",
    catchup=False,
    max_active_runs=1,
    tags=["lockgate"],
    params={"dry_run": Param(False, type="boolean", title="Only name what would be deleted")},
    doc_md="""
Runs daily, as `lockgate files retention --yes` does. Deletes closed files that match a pattern of
`LOCKGATE_FILES_RETENTION` and are older than its days, 200 in a transaction, and directories that are empty
then; skipped if there is none. The task's log names each path. The old side of a satellite gets empty by it:
`lockgate satellite status` shows how far it is. Lease recovery frees the space.
""",
) as dag:
    FileRetentionOperator(task_id="delete", report_only=dag.param("dry_run"))
