"""A DAG that compacts a destination in Spark; the Spark child of its first try dies after the decision."""

from __future__ import annotations

import os
from typing import Any

from airflow.sdk import DAG, Param

from lockgate.operators import CompactOperator


def die_once(context: Any) -> None:
    """Let the child of the first try kill itself."""
    if context["ti"].try_number == 1:
        os.environ["LOCKGATE_FAILPOINTS"] = "decide.create.after=kill"


with DAG("compact_lake", schedule=None, params={"destination": Param(type="string")}) as dag:
    CompactOperator(
        task_id="compact",
        destination=dag.param("destination"),
        via="spark",
        master="local[1]",
        retries=1,
        retry_delay=0,
        pre_execute=die_once,
    )
