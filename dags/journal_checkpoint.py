"""Take and verify a checkpoint of the journal, and prune what it covers."""

from __future__ import annotations

from airflow.sdk import DAG, Param

from lockgate.operators.journal import JournalCheckpointOperator

with DAG(
    "journal_checkpoint",
    description=__doc__,
    schedule="@daily",
    catchup=False,
    max_active_runs=1,
    tags=["lockgate"],
    params={
        "dry_run": Param(False, type="boolean", title="Prune nothing, only report what would be pruned"),
        "leave_safe_mode": Param(
            None,
            type=["null", "string"],
            title="Leave safe mode: the reason to drop",
            description="Such as `operator`. It is dropped only if the journal is found correct; nothing is "
            "pruned in this run.",
        ),
    },
    doc_md="""
Runs daily. Writes the journal's state to the store of `LOCKGATE_CHECKPOINT_URL`, folds the entries again to
verify checkpoints and tables, and drops entries, request ids and checkpoints that are no longer needed.
Fails, and prunes nothing, if an operator must act: checkpoints or tables contradict the entries, or the
journal is in safe mode. The XCom value has the numbers of folded and pruned entries.
""",
) as dag:
    JournalCheckpointOperator(
        task_id="checkpoint",
        report_only=dag.param("dry_run"),
        leave_safe_mode=dag.param("leave_safe_mode"),
    )
