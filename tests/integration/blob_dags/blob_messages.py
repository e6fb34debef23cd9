"""DAGs whose tasks hand on large values, and write a log while they wait."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from airflow.sdk import dag, task

LARGE = 50_000


@dag(schedule=None, catchup=False)
def blob_messages() -> None:
    """Large values: of mapped tasks, of a task with several, pulled over runs."""

    @task
    def produce(n: int) -> list[int]:
        return [n] * LARGE

    @task(multiple_outputs=True)
    def split() -> dict[str, Any]:
        return {"large": "x" * 2 * LARGE, "small": "y"}

    @task
    def consume(rows: Any, large: str, small: str, **context: Any) -> list[int]:
        found = context["ti"].xcom_pull(task_ids="split", key="large", include_prior_dates=True)
        assert found == large
        return [sum(sum(row) for row in rows), len(large), len(small)]

    halves = split()
    consume(produce.expand(n=[1, 2]), halves["large"], halves["small"])


@dag(schedule=None, catchup=False)
def blob_log() -> None:
    """A log that grows until the test says that it is enough."""

    @task
    def talk(**context: Any) -> None:
        print("the first line")
        enough = Path(context["dag_run"].conf["enough"])
        while not enough.exists():
            time.sleep(0.2)
        print("the last line")

    talk()


blob_messages()
blob_log()
