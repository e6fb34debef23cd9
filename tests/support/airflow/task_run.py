"""One task of one DAG run as an operator sees it, without Airflow's services."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any


@dataclass
class TaskRun:
    """The part of a task instance that operators use, with the values that they push."""

    dag_id: str = "sales"
    run_id: str = "manual__2026-11-21T00:00:00+00:00"
    task_id: str = "setup"
    map_index: int = -1
    pushed: dict[str, Any] = field(default_factory=dict)

    def xcom_push(self, key: str, value: Any) -> None:
        """Store a pushed value."""
        self.pushed[key] = value

    @staticmethod
    def get_task_states(**of: Any) -> dict[str, Any]:
        """Ask the supervisor for states of task instances."""
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        return RuntimeTaskInstance.get_task_states(**of)

    def context(self) -> dict[str, Any]:
        """Return the context that Airflow would pass to `execute`."""
        return {"ti": self, "outlet_events": defaultdict(OutletEvent)}


@dataclass
class OutletEvent:
    """The event of an outlet, with the data that an operator attaches."""

    extra: dict[str, Any] = field(default_factory=dict)
    added: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)

    def add(self, asset: Any, extra: dict[str, Any]) -> None:
        """Record an Asset's event on an alias."""
        self.added.append((asset, extra))
