"""The newest lines of a job's event log, as its processes have flushed them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from lockgate.plugins.web.facts.job_detail import place_of
from lockgate.plugins.web.models.event_log import JobLog, LogFile, LogLine, Recovery
from lockgate.plugins.web.request_reads import Reads
from lockgate.storage_core.commit.job_events import JobEvent
from lockgate.storage_core.commit.registry.rows import Job
from lockgate.storage_core.event_log.merged_events import MergedLog
from lockgate.storage_core.files.home_files import open_files

TAIL_BYTES: Final = 128 * 1024
"""Bytes that are read of each process's file, some hundred lines."""
VOLUMES: Final = "the volumes of the event log"


def job_log(reads: Reads, job_id: str, destination: str | None, limit: int) -> JobLog:
    """Return the newest lines of a job's log; none if it has no log.

    Args:
        reads: Reads of the application.
        job_id: Id of the job.
        destination: Its destination; None if the id is unique in the registry.
        limit: Maximum number of lines.

    Raises:
        ObjectNotFoundError: The registry has no such job, or the destination is not known.
        StoreUnavailableError: The volumes did not answer in time.
    """
    place = place_of(reads, job_id, destination)
    if not reads.has_journal:
        return JobLog(lines=(), files=(), is_cut=False)
    row = reads.journal(lambda reading: reading.get(Job, place, job_id))
    if row is None:
        why = f"the journal does not know {job_id} at {place}, so its event log is not known"
        return JobLog(lines=(), files=(), is_cut=False, unknown=(why,))
    return reads.store(VOLUMES, lambda: _read(reads, row, limit))


def _read(reads: Reads, row: Job, limit: int) -> JobLog:
    with open_files(reads.settings, writes=False, clock=reads.clock) as files:
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
            found.append(
                Recovery(
                    process=event.process,
                    began_s=event.at_s,
                    ended_s=None,
                    action=action,
                    why=text,
                    result="",
                    phase="",
                )
            )
        elif event.event == "recovery ended":
            index = at_work.pop(event.process, None)
            ended = {"ended_s": event.at_s, "result": text, "phase": event.phase}
            if index is None:
                found.append(
                    Recovery(process=event.process, began_s=None, action=action, why="", **ended)  # type: ignore[arg-type]
                )
            else:
                found[index] = found[index].model_copy(update=ended)
    return tuple(found)
