"""One task of one DAG run as an operator sees it, without Airflow's services."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lockgate.storage_core.failpoints import FAILPOINTS
from tests.commit_world import Crash, dying


@dataclass
class TaskRun:
    """What an operator asks its task instance for, and what it leaves there."""

    dag_id: str = "sales"
    run_id: str = "manual__2026-11-21T00:00:00+00:00"
    task_id: str = "setup"
    map_index: int = -1
    pushed: dict[str, Any] = field(default_factory=dict)

    def xcom_push(self, key: str, value: Any) -> None:
        """Keep what is handed on."""
        self.pushed[key] = value

    def context(self) -> dict[str, Any]:
        """Return the context that Airflow would pass to `execute`."""
        return {"ti": self, "outlet_events": defaultdict(OutletEvent)}


@dataclass
class OutletEvent:
    """What an operator tells an outlet."""

    extra: dict[str, Any] = field(default_factory=dict)
    added: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)

    def add(self, asset: Any, extra: dict[str, Any]) -> None:
        """Take an Asset's event, on an alias."""
        self.added.append((asset, extra))


def die_at(point: str, run: Callable[[], object]) -> None:
    """Run until a failpoint of this name is passed: from there on no storage call has an effect."""
    died = False

    def observe(name: str) -> None:
        nonlocal died
        died = died or name == point
        if died:
            raise Crash(name)

    FAILPOINTS.observer = dying(observe)
    try:
        run()
    except Crash:
        return
    finally:
        FAILPOINTS.observer = None
    raise AssertionError(f"{point} was never passed")
