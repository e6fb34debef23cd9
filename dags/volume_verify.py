"""Compare the replicas of appendable files with the journal, and read them."""

from __future__ import annotations

from airflow.sdk import DAG, Param

from lockgate.operators.leases import VolumeVerifyOperator

with DAG(
    "volume_verify",
    description=__doc__,
    schedule="@weekly",
    catchup=False,
    max_active_runs=1,
    tags=["lockgate"],
    params={
        "path": Param("", type=["null", "string"], title="File or directory; empty: all replicas"),
        "mb_per_s": Param(20, type="integer", minimum=1, title="Megabytes read a second, at most"),
    },
    doc_md="""
Runs weekly. Compares the replicas on the volumes of this machine with the journal, and reads the bytes of
sealed ones. It changes nothing. Fails if a replica is lost, stale or corrupt, or a volume does not answer;
the task's log names each with its file.
""",
) as dag:
    VolumeVerifyOperator(
        task_id="verify",
        path="{{ params.path or '' }}",
        mb_per_s="{{ params.mb_per_s }}",
    )
