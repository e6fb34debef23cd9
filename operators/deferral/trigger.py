"""ConditionTrigger: the trigger of all deferred tasks of Lockgate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from airflow.sdk.exceptions import AirflowNotFoundException, AirflowRuntimeError
from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from lockgate.operators.connections.read import connected_settings
from lockgate.operators.dag_run.retries import NOT_RETRYABLE, UPGRADING
from lockgate.operators.deferral.conditions import CONDITIONS
from lockgate.storage_core.errors import LockgateError, ObjectNotFoundError
from lockgate.storage_core.settings import Settings, settings_in_effect

DEADLINE: Final = "the time is over"
CAUGHT: Final = (LockgateError, AirflowNotFoundException, AirflowRuntimeError)
"""A store that is away comes back; so do connections, which Airflow does not find without its database."""
FINAL: Final = (*NOT_RETRYABLE, ObjectNotFoundError)


class ConditionTrigger(BaseTrigger):
    """Asks a condition until it says why to resume the task, or until a deadline.

    Its arguments are scalars without secrets: addresses and credentials are those of the triggerer's own
    settings, or of the Airflow connections that it names. A restarted triggerer begins again with the same
    arguments.

    Args:
        condition: Name of the condition.
        arguments: Its arguments.
        not_before_s: Wall-clock time in seconds since the epoch before which the task is not resumed.
        deadline_s: Time after which it is resumed anyhow.
        poll_s: Seconds between two questions.
        aws_conn_id: As for the operators.
        lockgate_conn_id: As for the operators.
    """

    def __init__(
        self,
        condition: str,
        arguments: Mapping[str, Any],
        *,
        not_before_s: float,
        deadline_s: float,
        poll_s: float,
        aws_conn_id: str | None = None,
        lockgate_conn_id: str | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.condition = condition
        self.arguments = dict(arguments)
        self.not_before_s = not_before_s
        self.deadline_s = deadline_s
        self.poll_s = poll_s
        self.aws_conn_id = aws_conn_id
        self.lockgate_conn_id = lockgate_conn_id
        self._asked = CONDITIONS[condition](**self.arguments)
        self._settings: tuple[Settings | None] | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what makes this trigger again."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "condition": self.condition,
                "arguments": self.arguments,
                "not_before_s": self.not_before_s,
                "deadline_s": self.deadline_s,
                "poll_s": self.poll_s,
                "aws_conn_id": self.aws_conn_id,
                "lockgate_conn_id": self.lockgate_conn_id,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event: why the task is resumed."""
        why = None
        while why is None:
            await asyncio.sleep(max(self.not_before_s - time.time(), 0.0))
            try:
                why = await sync_to_async(self._ask, thread_sensitive=False)()
            except CAUGHT as error:
                found = f"{type(error).__name__}: {error}"
                if isinstance(error, FINAL) and not isinstance(error, UPGRADING):
                    why = found  # the resumed task meets it too, and fails
                else:
                    self.log.warning("%s; asked again in %.0f s", found, self.poll_s)
            if why is None and time.time() >= self.deadline_s:
                why = DEADLINE
            if why is None:
                await asyncio.sleep(self.poll_s)
        yield TriggerEvent({"why": why})  # type: ignore[no-untyped-call]

    async def on_kill(self) -> None:
        """Withdraw what was dispatched, when a user clears or marks the deferred task."""
        await sync_to_async(self._withdraw, thread_sensitive=False)()

    def _ask(self) -> str | None:
        with settings_in_effect(self._connected()):
            return self._asked.ask()

    def _withdraw(self) -> None:
        with settings_in_effect(self._connected()):
            self._asked.withdraw()

    def _connected(self) -> Settings | None:
        """Return the settings of the connections, which are read once."""
        if self._settings is None:
            self._settings = (connected_settings(self.aws_conn_id or None, self.lockgate_conn_id or None),)
        return self._settings[0]
