"""ConditionTrigger: the trigger of all deferred tasks, and the conditions that they wait for.

`ask` of a condition returns why the task is to be resumed, or None. The resumed task looks again by itself,
so a condition decides nothing, and one that is asked again, after a restart of the triggerer, does no harm.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from airflow.sdk.exceptions import AirflowNotFoundException, AirflowRuntimeError
from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from lockgate.operators.connections import connected_settings
from lockgate.operators.dag_run.operator import NOT_RETRYABLE, UPGRADING
from lockgate.storage_core.commit.destination.log import DestinationLog
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.log_records import Receipt
from lockgate.storage_core.commit.records.phase import NEXT, JobPhase
from lockgate.storage_core.errors import LockgateError, ObjectNotFoundError
from lockgate.storage_core.ids import JobId
from lockgate.storage_core.settings import Settings, load_settings, settings_in_effect
from lockgate.storage_core.stores import open_store

DEADLINE: Final = "the time is over"
CAUGHT: Final = (LockgateError, AirflowNotFoundException, AirflowRuntimeError)
"""A store that is away comes back; so do connections, which Airflow does not find without its database."""
FINAL: Final = (*NOT_RETRYABLE, ObjectNotFoundError)
LOG: Final = logging.getLogger("lockgate.deferral")
ALL_ENDED: Final = "all ended"
NO_WORKER: Final = "no worker listens"
LOST: Final = "the broker has lost messages"
NO_BROKER: Final = "the broker does not answer"


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


class Condition:
    """Something to wait for."""

    def ask(self) -> str | None:
        """Return why the task is to be resumed; None to wait longer. Blocks."""
        raise NotImplementedError

    def withdraw(self) -> None:
        """Stop what was dispatched, because a user has stopped the task; by default nothing was. Blocks."""


@dataclass
class BatchEnded(Condition):
    """A batch of Celery tasks has ended, or has no worker.

    Attributes:
        batch: Name of the batch; with a position the id of each task.
        count: Number of tasks.
        queue: Their queue.
        grace_s: How long to wait without a result, and without a worker or a broker.
    """

    batch: str
    count: int
    queue: str
    grace_s: float
    _pending: set[int] = field(default_factory=set)
    _quiet_since: float = 0.0

    def __post_init__(self) -> None:
        self._pending = set(range(self.count))
        self._quiet_since = time.monotonic()

    def ask(self) -> str | None:
        """Return whether all tasks have ended, or nothing has happened for the grace time and why."""
        from lockgate.workers.gather import BROKER_ERRORS, ended_in, has_lost, is_served

        is_over = time.monotonic() - self._quiet_since >= self.grace_s
        try:
            if ended := ended_in(self.batch, self._pending):
                self._pending -= ended
                self._quiet_since = time.monotonic()
            elif self._pending and is_over:
                if not is_served(self.queue):
                    return NO_WORKER
                if has_lost(self.batch, self._pending, self.queue):
                    return LOST
                self._quiet_since = time.monotonic()
        except (*BROKER_ERRORS, LockgateError) as error:
            LOG.warning("batch %s: the broker gives no answer: %s", self.batch, error)
            return NO_BROKER if is_over else None
        return None if self._pending else ALL_ENDED

    def withdraw(self) -> None:
        """Withdraw the tasks that no worker has begun; begun ones continue, and their effects are fenced."""
        from lockgate.workers.gather import withdraw

        withdraw(self.batch, self.count)


@dataclass
class JobReached(Condition):
    """A job has reached a phase, or can never reach it."""

    destination: str
    job_id: str
    phase: str

    def ask(self) -> str | None:
        """Return the job's phase if the wait is over."""
        found = self.look()
        return str(found) if is_reached(found, self.phase) or not may_reach(found, self.phase) else None

    def look(self) -> JobPhase:
        """Return the job's phase.

        Raises:
            ObjectNotFoundError: There is no such job.
        """
        folder = JobFolder(open_store(self.destination, load_settings()), JobId(self.job_id))
        folder.job()
        return folder.phase()


@dataclass
class ManifestHas(Condition):
    """A destination has published a turn, or data newer than a time."""

    destination: str
    turn: int
    newer_than_s: float

    def ask(self) -> str | None:
        """Return the published turn if the wait is over."""
        receipt = self.look()
        return None if receipt is None else f"turn {receipt.turn}"

    def look(self) -> Receipt | None:
        """Return the receipt of the newest publication if it is new enough, else None."""
        log = DestinationLog(open_store(self.destination, load_settings()))
        newest = log.highest()
        while newest is not None:
            outcome = newest.outcome
            if outcome is not None and outcome.receipt is not None:
                receipt = outcome.receipt
                is_new = receipt.turn >= self.turn and receipt.published_s > self.newer_than_s
                return receipt if is_new else None
            try:
                newest = log.turn(newest.number - 1) if newest.number > 1 else None
            except ObjectNotFoundError:
                return None  # older turns are only in a checkpoint
        return None


CONDITIONS: Final[Mapping[str, Callable[..., Condition]]] = {
    "batch": BatchEnded,
    "job": JobReached,
    "manifest": ManifestHas,
}
"""Conditions by the name that a trigger carries."""


def is_reached(found: JobPhase, wanted: str) -> bool:
    """Return whether a job in phase `found` is in the wanted phase, or was in it."""
    return found == wanted or found in _after(JobPhase(wanted))


def may_reach(found: JobPhase, wanted: str) -> bool:
    """Return whether a job in phase `found` is in the wanted phase, or can come to it."""
    return found == wanted or wanted in _after(found)


def _after(phase: JobPhase) -> set[JobPhase]:
    found: set[JobPhase] = set()
    following = set(NEXT[phase])
    while following:
        found |= following
        following = {after for each in following for after in NEXT[each]} - found
    return found
