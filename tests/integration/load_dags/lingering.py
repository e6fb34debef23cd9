"""A DAG of the tests whose tasks last until a test lets them go."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, task


@task(retries=3, retry_delay=timedelta(0))
def linger(number: int, enough: str, ti: Any = None) -> None:
    """Record this run, and wait until there is the file."""
    import time
    from pathlib import Path

    from tests.support.workers.message_records import note

    name = f"{ti.run_id}/{number}"
    note("airflow", "begun", name)
    while not Path(enough).exists():
        time.sleep(0.1)
    note("airflow", "ended", name)


with DAG(
    "lingering",
    schedule=None,
    params={"numbers": Param([], type="array"), "enough": Param("", type="string")},
) as dag:

    @task
    def numbers(params: Any = None) -> list[int]:
        """Return the number of each task."""
        return list(params["numbers"])

    linger.partial(enough=dag.param("enough")).expand(number=numbers())
