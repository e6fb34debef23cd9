"""Compare the replicas of appendable files with the journal, read them, and repair what is damaged."""

from __future__ import annotations

from airflow.sdk import DAG, Param

from lockgate.operators.files import VolumeUpkeepOperator

with DAG(
    "volume_upkeep",
    description=__doc__,
    schedule="@weekly",
    catchup=False,
    max_active_runs=1,
    tags=["lockgate"],
    params={
        "path": Param("", type=["null", "string"], title="File or directory to check only; empty: all"),
        "repair": Param(True, type="boolean", title="Repair what is wrong"),
        "mb_per_s": Param(20, type="integer", minimum=1, title="Megabytes a second, at most"),
    },
    doc_md="""
Runs weekly, as `lockgate volumes check` and then `lockgate volumes repair` do. Compares the replicas on the
volumes with the journal, and reads the bytes of sealed ones. A replica that is lost, stale or damaged is
taken out of use, and its block copied to another volume; replicas that no block names any more are judged
twice, and deleted. Fails if something could not be repaired, or a volume does not answer; the task's log
names each replica with its file. A run that was stopped goes on in the next one. Without `repair`, or with a
path, it changes nothing, and fails if a replica is wrong.
""",
) as dag:
    VolumeUpkeepOperator(
        task_id="upkeep",
        path="{{ params.path or '' }}",
        repair=dag.param("repair"),
        mb_per_s="{{ params.mb_per_s }}",
    )
