"""Events of a job, handed to the job's event log.

The log takes no part in the protocol: a job without one commits as well, and no error of the log reaches the
caller. It is a package above this one, so it is named here and imported at the first event.

Source: docs/internals/files.md.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.commit.records.job_record import JobRecord
from lockgate.storage_core.settings import Settings

if TYPE_CHECKING:
    from lockgate.storage_core.commit.records.job_folder import JobFolder

JOB_LOG: Final = "lockgate.storage_core.event_log.event_queue:append_event"
"""Function that appends an event to a job's log."""
CLOSE: Final = "lockgate.storage_core.event_log.event_queue:close_event_logs"

Role = Literal["driver", "worker", "recovery"]

EventName = Literal[
    "opened",
    "suspended",
    "task committed",
    "commit failed",
    "phase",
    "shard completed",
    "recovery began",
    "recovery ended",
    "lines lost",
    "closed",
]


class JobEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of a job's event log.

    Attributes:
        at_s: Seconds since the epoch, by the clock of the process.
        event: What happened, an `EventName`; a newer program may write others. `lines lost` and `closed` are
            the log's own: lines that could not be appended, and the last line of a process.
        role: Part of the process in the job.
        process: `host:pid` of the process.
        job_attempt: Driver run of a driver that opened or suspended the job, or of a task.
        phase: Phase that the job has now.
        task_id: Task that committed.
        attempt_id: Its attempt.
        shard: Number of the completed shard in the plan, from 0.
        files: Files of the task or the shard, or those that the job has published.
        rows: Their rows, if they are known.
        size_bytes: Their size.
        lines: Number of lost lines.
        detail: Reason, action or error, for people.
    """

    at_s: float
    event: str
    role: str
    process: str = ""
    job_attempt: str = ""
    phase: str = ""
    task_id: str = ""
    attempt_id: str = ""
    shard: int | None = None
    files: int | None = None
    rows: int | None = None
    size_bytes: int | None = None
    lines: int | None = None
    detail: str = ""

    @property
    def text(self) -> str:
        """What happened, in words."""
        named = {
            "phase": f"phase: {self.phase}",
            "task committed": f"task {self.task_id} committed",
            "shard completed": f"shard {self.shard} completed",
            "lines lost": f"{self.lines} lines of this log were lost",
            "closed": "end of this process's log",
        }.get(self.event, self.event)
        facts = [
            *([f"{self.files} files"] if self.files is not None else []),
            *([f"{self.rows} rows"] if self.rows is not None else []),
            *([f"{self.size_bytes} bytes"] if self.size_bytes is not None else []),
            *([self.detail] if self.detail else []),
        ]
        return f"{named}: {', '.join(facts)}" if facts else named


_ROLE: Final[ContextVar[Role]] = ContextVar("lockgate-job-role", default="driver")


@contextmanager
def acting_as(role: Role) -> Iterator[None]:
    """Set the role of this process in the events within."""
    token = _ROLE.set(role)
    try:
        yield
    finally:
        _ROLE.reset(token)


def record_event(
    folder: JobFolder, job: JobRecord, event: EventName, settings: Settings, clock: Clock, **facts: Any
) -> None:
    """Hand an event to the job's log, without waiting for it.

    A job whose leases are not in a journal has no log.

    Args:
        folder: Folder of the job's records, where the log is if no volume is registered.
        job: Record of the job.
        event: What happened.
        settings: Uses `job_log` and what `open_files` uses.
        clock: Clock of the job.
        facts: Other fields of `JobEvent`.
    """
    if job.journal and settings.job_log and settings.has_journal:
        line = JobEvent(at_s=clock.now_s(), event=event, role=_ROLE.get(), **facts)
        _append()(job, line, settings, clock, f"{folder.store.url}/{folder.key('log')}")


def end_logs() -> None:
    """Wait for the last lines of this process for a few seconds, and close its files.

    For a process that ends without Python's exit handlers, as tasks of Airflow and Celery do.
    """
    if _append.cache_info().currsize:
        pkgutil.resolve_name(CLOSE)()


@cache
def _append() -> Callable[[JobRecord, JobEvent, Settings, Clock, str], None]:
    found: Callable[[JobRecord, JobEvent, Settings, Clock, str], None] = pkgutil.resolve_name(JOB_LOG)
    return found
