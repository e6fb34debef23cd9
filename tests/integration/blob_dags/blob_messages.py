"""DAGs with tasks that pass on large values, write a log while they wait, defer, or run on two workers."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from airflow.providers.standard.triggers.file import FileTrigger
from airflow.sdk import BaseOperator, dag, task

LARGE = 50_000


class WaitOperator(BaseOperator):
    """Wait for a file in the triggerer; push a large value before and one after the wait."""

    def execute(self, context: Any) -> None:
        print("before it defers")
        context["ti"].xcom_push("state", "waiting" * LARGE)
        trigger = FileTrigger(context["dag_run"].conf["awaited"], poke_interval=0.2)
        self.defer(trigger=trigger, method_name="resume")

    def resume(self, context: Any, event: bool) -> str:
        print("after it resumed")
        with Path(context["dag_run"].conf["resumed"]).open("a") as file:
            file.write("once\n")
        context["ti"].xcom_push("state", "resumed" * LARGE)
        return "x" * 2 * LARGE


@dag(schedule=None, catchup=False)
def blob_messages() -> None:
    """Push large values from mapped tasks and from a task with several values; pull them across runs."""

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
    """Write a log until the test stops it."""

    @task
    def talk(**context: Any) -> None:
        print("the first line")
        enough = Path(context["dag_run"].conf["enough"])
        while not enough.exists():
            time.sleep(0.2)
        print("the last line")

    talk()


@dag(schedule=None, catchup=False)
def blob_deferring() -> None:
    """Run a task that waits in the triggerer."""

    @task
    def check(returned: str, **context: Any) -> list[Any]:
        state = context["ti"].xcom_pull(task_ids="wait", key="state")
        return [state[:7], len(returned)]

    check(WaitOperator(task_id="wait").output)


@dag(schedule=None, catchup=False)
def blob_workers() -> None:
    """Pass a large value from one Celery worker to another."""

    @task(executor="CeleryExecutor", queue="near", multiple_outputs=False)
    def push() -> dict[str, str]:
        return {"from": os.environ["LOCKGATE_HOME"], "value": "x" * 2 * LARGE}

    @task(executor="CeleryExecutor", queue="far")
    def pull(pushed: dict[str, str]) -> list[Any]:
        return [pushed["from"], os.environ["LOCKGATE_HOME"], len(pushed["value"])]

    pull(push())


blob_messages()
blob_log()
blob_deferring()
blob_workers()
