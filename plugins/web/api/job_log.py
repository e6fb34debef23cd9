"""The newest lines of a job's event log, as its processes have flushed them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final

from fastapi import APIRouter, Query

from lockgate.plugins.web.answers import Model
from lockgate.plugins.web.api.job import DestinationOfJob, place_of
from lockgate.plugins.web.request_reads import Reads, ReadsOfRequest
from lockgate.storage_core.commit.job_events import JobEvent
from lockgate.storage_core.commit.registry.rows import Job
from lockgate.storage_core.event_log.merged_events import MergedLog
from lockgate.storage_core.satellite.open_overlay import open_files

router = APIRouter(prefix="/jobs/{job_id}/log", tags=["job"])

TAIL_BYTES: Final = 128 * 1024
"""Bytes that are read of each process's file, some hundred lines."""
VOLUMES: Final = "the volumes of the event log"


class LogLine(Model):
    """A line of a job's event log.

    Attributes:
        at_s: By the clock of its process.
        event: What happened, such as `phase` or `task committed`; more may be added.
        role: Part of its process in the job: `driver`, `worker` or `recovery`.
        process: `host:pid`.
        text: The event in words.
        phase: Phase that the job has now; empty if the event does not say.
        task_id: Task that committed; empty otherwise.
        attempt_id: Its attempt.
        shard: Number of the completed shard.
    """

    at_s: float
    event: str
    role: str
    process: str
    text: str
    phase: str
    task_id: str
    attempt_id: str
    shard: int | None


class LogFile(Model):
    """The file of one process.

    Attributes:
        name: Its name in the directory `/jobs` of appendable files.
        state: `open`: its process writes it, or has ended without closing it; `closed`; `cut`: a recovery has
            closed it, and its process may have had more lines.
    """

    name: str
    state: str


class Recovery(Model):
    """What one recovery did to the job.

    Attributes:
        process: `host:pid`.
        began_s: None if the line is not among those that were read.
        ended_s: None if the recovery is at work, or its process ended without a last line.
        action: Decision of the recovery: `abort`, `resume` or `roll forward`.
        why: Why it decided so.
        result: What came of it; empty before the end.
        phase: Phase of the job after it; empty before the end.
    """

    process: str
    began_s: float | None
    ended_s: float | None = None
    action: str
    why: str = ""
    result: str = ""
    phase: str = ""


class JobLog(Model):
    """The newest lines of a job's event log, the oldest of them first.

    Attributes:
        is_cut: Whether there are earlier lines.
        recoveries: Recoveries of the job in the lines that were read, the oldest first.
        unknown: What could not be read, and why: lines may be missing.
    """

    lines: tuple[LogLine, ...] = ()
    files: tuple[LogFile, ...] = ()
    is_cut: bool = False
    recoveries: tuple[Recovery, ...] = ()
    unknown: tuple[str, ...] = ()


@router.get("")
def job_log(
    reads: ReadsOfRequest,
    job_id: str,
    destination: DestinationOfJob = None,
    limit: Annotated[int, Query(ge=1, le=1_000, description="Maximum number of lines.")] = 200,
) -> JobLog:
    """Return the newest lines of a job's event log, also while the job runs.

    Raises:
        ObjectNotFoundError: The registry has no such job, or the destination is not known.
        StoreUnavailableError: The volumes did not answer in time.
    """
    place = place_of(reads, job_id, destination)
    if not reads.has_journal:
        return JobLog()
    row = reads.journal(lambda reading: reading.get(Job, place, job_id))
    if row is None:
        why = f"the journal does not know {job_id} at {place}, so its event log is not known"
        return JobLog(unknown=(why,))
    return reads.store(VOLUMES, lambda: _read(reads, row, limit))


def _read(reads: Reads, row: Job, limit: int) -> JobLog:
    with open_files(reads.settings, clock=reads.clock, reads=reads.client) as files:
        log = MergedLog(files, row.job_id, row.short_id, tail_bytes=TAIL_BYTES)
        events = log.read()
    return JobLog(
        lines=tuple(LogLine.model_validate(event) for event in events[-limit:]),
        files=tuple(LogFile(name=file.name, state=file.state) for file in log.files),
        is_cut=log.is_cut or len(events) > limit,
        recoveries=_recoveries(events),
        unknown=tuple(f"{file.name}: {file.why_not}" for file in log.files if file.why_not),
    )


def _recoveries(events: Iterable[JobEvent]) -> tuple[Recovery, ...]:
    """Return the recoveries, each from its first and last line; a process recovers a job once at a time."""
    found: list[Recovery] = []
    at_work: dict[str, int] = {}
    for event in events:
        action, _, text = event.detail.partition(": ")
        if event.event == "recovery began":
            at_work[event.process] = len(found)
            found.append(Recovery(process=event.process, began_s=event.at_s, action=action, why=text))
        elif event.event == "recovery ended":
            index = at_work.pop(event.process, len(found))
            if index == len(found):
                found.append(Recovery(process=event.process, began_s=None, action=action))
            ended = {"ended_s": event.at_s, "result": text, "phase": event.phase}
            found[index] = found[index].model_copy(update=ended)
    return tuple(found)
