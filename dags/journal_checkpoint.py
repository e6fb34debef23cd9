"""Every day: a checkpoint of the journal is taken and proved, and what it holds is pruned."""

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
    params={"dry_run": Param(False, type="boolean", title="Prune nothing, only tell what would go")},
    doc_md="""
Stores what the journal knows in the store of `LOCKGATE_CHECKPOINT_URL`, folds its entries again to prove that
checkpoints and tables are what they say, and drops entries, request ids and checkpoints that are no longer
needed. Fails, and prunes nothing, where a person has to look: something contradicts the entries, or the
journal is in safe mode. Its XCom says how much was folded and pruned.
""",
) as dag:
    JournalCheckpointOperator(task_id="checkpoint", report_only=dag.param("dry_run"))
