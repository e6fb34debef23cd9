"""A fake of Airflow's table of Asset events, and of what the API server does when a task ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from airflow.sdk import Asset, BaseOperator
from airflow.sdk.exceptions import ErrorType
from airflow.sdk.execution_time.comms import (
    AssetEventsResult,
    ErrorResponse,
    GetAssetByName,
    GetAssetEventByAsset,
    GetTaskStates,
    TaskStatesResult,
)
from airflow.sdk.execution_time.context import OutletEventAccessors
from airflow.sdk.execution_time.task_runner import _build_asset_profiles, _serialize_outlet_events

from tests.support.airflow.task_run import TaskRun


@dataclass
class AssetEvents:
    """Events by name and URI of their Asset, and states of task instances by DAG, run and task.

    Attributes:
        aliases: Names of the aliases by which an event came.
        inactive: Names of Assets that no DAG uses any more.
    """

    events: list[tuple[Asset, dict[str, Any]]] = field(default_factory=list)
    states: dict[tuple[str, str, str], str | None] = field(default_factory=dict)
    aliases: set[str] = field(default_factory=set)
    inactive: set[str] = field(default_factory=set)

    def run(self, operator: BaseOperator, run: TaskRun | None = None, *, dies: bool = False) -> Any:
        """Execute a task; unless it fails, store its events, its state, and run its callbacks.

        Args:
            dies: Whether its process dies when Airflow has stored its success.
        """
        run = run or TaskRun(task_id=operator.task_id)
        task = operator.prepare_for_execution()
        context: Any = {**run.context(), "outlet_events": OutletEventAccessors()}
        place = (run.dag_id, run.run_id, run.task_id)
        self.states[place] = "running"
        try:
            returned = task.execute(context)
        except BaseException:
            self.states[place] = "failed"
            raise
        self.states[place] = "success"
        self._store(task, context)
        for callback in () if dies else task.on_success_callback:
            callback(context)
        return returned

    def _store(self, task: BaseOperator, context: Any) -> None:
        """Store the events as `TaskInstance.register_asset_changes_in_db` does."""
        profiles = list(_build_asset_profiles(list(task.outlets)))
        sent: list[Any] = list(_serialize_outlet_events(context["outlet_events"]))
        direct = {(e["dest_asset_key"]["name"], e["dest_asset_key"]["uri"]): e["extra"] for e in sent}
        self.events += [
            (Asset(name=p.name, uri=p.uri), dict(direct.get((p.name, p.uri), {})))
            for p in profiles
            if p.type == "Asset" and p.name and p.uri
        ]
        names = {p.name for p in profiles if p.type == "AssetAlias"}
        found: list[tuple[Asset, dict[str, Any]]] = []
        for event in sent:
            if event.get("source_alias_name") in names:
                self.aliases.add(event["source_alias_name"])
                new = (Asset(**event["dest_asset_key"]), dict(event["extra"]))
                if new not in found:  # the server stores one event for several aliases
                    found.append(new)
        self.events += found

    def send(self, msg: Any) -> Any:
        """Answer a task's message."""
        if isinstance(msg, GetTaskStates):
            found: dict[str, dict[str, Any]] = {}
            for (dag, run, task), state in self.states.items():
                if dag == msg.dag_id and run in (msg.run_ids or ()) and task in (msg.task_ids or ()):
                    found.setdefault(run, {})[task] = state
            return TaskStatesResult(task_states=found)
        if isinstance(msg, GetAssetEventByAsset):
            matching = [
                (asset, extra)
                for asset, extra in self.events
                if msg.name in (None, asset.name) and msg.uri in (None, asset.uri)
            ]
            return AssetEventsResult.model_validate({"asset_events": [_row(*event) for event in matching]})
        if isinstance(msg, GetAssetByName):
            if msg.name in self.inactive:
                return ErrorResponse(error=ErrorType.ASSET_NOT_FOUND, detail={"name": msg.name})
            return Asset(name=msg.name)
        raise AssertionError(f"a task does not ask for {msg!r} here")


def _row(asset: Asset, extra: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": 1,
        "timestamp": datetime.now(UTC),
        "extra": extra,
        "asset": {"name": asset.name, "uri": asset.uri, "group": "asset", "extra": {}},
        "created_dagruns": [],
    }
