"""Compare the replicas of appendable files with the journal, read them, and repair what is damaged."""

from __future__ import annotations

from airflow.sdk import DAG, Param

from lockgate.operators.files import VolumeVerifyOperator

with DAG(
    "volume_verify",
    description=__doc__,
    schedule="@weekly",
    catchup=False,
    max_active_runs=1,
    tags=["lockgate"],
    params={
        "path": Param("", type=["null", "string"], title="File or directory to check only; empty: all"),
        "repair": Param(True, type="boolean", title="Quarantine damaged replicas, copy their blocks"),
        "mb_per_s": Param(20, type="integer", minimum=1, title="Megabytes a second, at most"),
    },
    doc_md="""
Runs weekly. Reports the replicas on the volumes that this machine reaches, and reads the bytes of sealed
ones. A replica that is lost, stale or damaged is quarantined, and its block copied to another volume. Nothing
is deleted: `lockgate volumes clean` does that. Fails if something could not be repaired, or a volume does not
answer; the task's log names each replica with its file. A run that was stopped goes on in the next one.
Without `repair`, or with a path, it changes nothing, and fails if a replica is wrong.
""",
) as dag:
    VolumeVerifyOperator(
        task_id="verify",
        path="{{ params.path or '' }}",
        repair=dag.param("repair"),
        mb_per_s="{{ params.mb_per_s }}",
    )
