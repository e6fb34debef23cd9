"""A fake of Airflow's XCom table and of the part of the supervisor through which tasks access it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from airflow.sdk.execution_time.comms import (
    DeleteXCom,
    GetXCom,
    GetXComSequenceSlice,
    SetXCom,
    XComResult,
    XComSequenceSliceResult,
)

Place = tuple[str, str, str, int, str]


@dataclass
class XComTable:
    """Rows by DAG, run, task, map index and key; values as JSON, as Airflow's database keeps them."""

    rows: dict[Place, str] = field(default_factory=dict)
    fails: bool = False

    def send(self, msg: Any) -> Any:
        """Answer a task's message."""
        if isinstance(msg, SetXCom):
            if self.fails:
                raise ConnectionError("the API server is away")
            self.rows[_place(msg)] = json.dumps(msg.value)
            return None
        if isinstance(msg, GetXCom):
            stored = self.rows.get(_place(msg))
            return XComResult(key=msg.key, value=None if stored is None else json.loads(stored))
        if isinstance(msg, GetXComSequenceSlice):
            found = [
                json.loads(value)
                for place, value in sorted(self.rows.items())
                if (*place[:3], place[4]) == (msg.dag_id, msg.run_id, msg.task_id, msg.key)
            ]
            return XComSequenceSliceResult(root=found)
        if isinstance(msg, DeleteXCom):
            self.rows.pop(_place(msg), None)
            return None
        raise AssertionError(f"a task does not ask for {msg!r} here")

    async def asend(self, msg: Any) -> Any:
        """Answer a coroutine's message."""
        return self.send(msg)


def _place(msg: Any) -> Place:
    map_index = -1 if msg.map_index is None else msg.map_index
    return msg.dag_id, msg.run_id, msg.task_id, map_index, msg.key
