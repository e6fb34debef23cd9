"""The files that one thread writes: opened at a job's first line, closed at its end or when they are idle.

A failure costs the lines of the log, never more: the files of the failed volumes are left to the recovery of
their leases, and new ones are begun after a rest.
"""

from __future__ import annotations

import logging
import os
import socket
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from time import monotonic
from typing import Final, NamedTuple

import msgspec

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.commit.job_events import JobEvent
from lockgate.storage_core.commit.records.job_record import JobRecord
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.errors import (
    FencedError,
    LockgateError,
    ObjectNotFoundError,
    StoreUnavailableError,
)
from lockgate.storage_core.event_log.event_files import JOB_LOGS, log_path, make_log_volume, new_log_name
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.namespace.volume_urls import read_places
from lockgate.storage_core.files.writing.writer import FileWriter
from lockgate.storage_core.ids import JobId, ShortId
from lockgate.storage_core.journal.process_journal import configured_journal, journal_url
from lockgate.storage_core.satellite.open_overlay import open_files
from lockgate.storage_core.settings import Settings

LOG: Final = logging.getLogger("lockgate.event_log")

REST_S: Final = 30.0
"""After a failure the volumes are left alone for this long, and lines are lost."""

_LAST: Final = frozenset({"suspended", "commit failed", "recovery ended"})


class Place(NamedTuple):
    """Journal and volumes of some logs."""

    journal_url: str
    journal: str
    home: str


class JobKey(NamedTuple):
    """A job, and where its log is."""

    place: Place
    journal: str
    job_id: str
    short_id: str

    @classmethod
    def of(cls, job: JobRecord, settings: Settings) -> JobKey:
        """Return the key of a job."""
        place = Place(journal_url(settings), settings.journal, str(settings.home_dir))
        return cls(place, job.journal.partition("@")[0], job.job_id, job.short_id)


class Queued(NamedTuple):
    """A line to append."""

    job: JobRecord
    event: JobEvent
    settings: Settings
    clock: Clock
    own_volume: str


class Losses:
    """What the logs of this process have lost.

    Attributes:
        warned: Places whose failure was logged; a success removes them.
        lines: Numbers of lines that the logs do not have, and do not name yet.
    """

    def __init__(self) -> None:
        self.warned: set[Place] = set()
        self.lines: Counter[JobKey] = Counter()


class LogWriters:
    """The open files of all logs that this process writes, for one thread.

    Args:
        losses: Shared with later threads.
    """

    def __init__(self, losses: Losses) -> None:
        self._losses = losses
        self._places: dict[Place, _PlaceWriters] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no file is open and no volume is held."""
        return not self._places

    def append(self, lines: Iterable[Queued], lost: Mapping[JobKey, int]) -> None:
        """Append lines and flush them; an error costs the lines.

        Args:
            lines: Lines of any jobs, in their order.
            lost: Numbers of lines that did not fit into the queue.
        """
        self._losses.lines.update(lost)  # adds them; a job without a line here names them with its next one
        jobs: dict[tuple[int, JobId, ShortId], list[Queued]] = {}
        for line in lines:
            jobs.setdefault((id(line.settings), line.job.job_id, line.job.short_id), []).append(line)
        for queued in jobs.values():
            job = JobKey.of(queued[0].job, queued[0].settings)
            if job.place not in self._places:
                self._places[job.place] = _PlaceWriters(
                    queued[0].settings, queued[0].clock, self._losses.lines
                )
            why_not = self._places[job.place].append(
                job, [line.event for line in queued], queued[0].own_volume
            )
            if not why_not:
                self._losses.warned.discard(job.place)
            elif job.place not in self._losses.warned:
                self._losses.warned.add(job.place)
                LOG.warning(
                    "job %s: its event log is not written: %s; the job is not affected",
                    *(job.job_id, why_not),
                )

    def close_idle(self, idle_s: float) -> None:
        """Close the files without lines for this long, and give up volumes that are not used."""
        for place in [place for place, writers in self._places.items() if writers.is_idle(idle_s)]:
            self._places.pop(place).close()

    def close(self) -> None:
        """Close all files, and give up the volumes."""
        while self._places:
            self._places.popitem()[1].close()


class _OpenLog:
    """A file that is open, and when it got its last line."""

    def __init__(self, writer: FileWriter, role: str) -> None:
        self.writer = writer
        self.role = role
        self.used_s = monotonic()


class _PlaceWriters:
    """The open files of one journal and its volumes."""

    def __init__(self, settings: Settings, clock: Clock, lost: Counter[JobKey]) -> None:
        self._settings = settings
        self._clock = clock
        self._opened = ExitStack()
        self._files: Files | None = None
        self._journal = ""
        self._is_shared = True
        self._without: set[JobKey] = set()  # jobs whose destinations can have no volume
        self._logs: dict[JobKey, _OpenLog] = {}
        self._lost = lost
        self._rests_until_s = 0.0
        self._used_s = monotonic()
        self._process = f"{socket.gethostname()}:{os.getpid()}"

    def append(self, job: JobKey, events: Sequence[JobEvent], own_volume: str) -> str:
        """Append the lines of one job and flush them; close its file if they are its last.

        Args:
            job: The job.
            events: Its lines, at least one.
            own_volume: URL of a volume of its own, used if no volume is registered that all machines reach.

        Returns:
            Why they were not appended; empty if they were.
        """
        self._used_s = monotonic()
        if self._used_s < self._rests_until_s:
            self._lost[job] += len(events)
            return "an earlier append has failed"
        try:
            self._append(self._open_files(), job, events, own_volume)
        except FencedError as error:
            # The log was deleted, or this process was stopped for longer than a lease lasts.
            self._logs.pop(job, None)
            self._lost[job] += len(events)
            return str(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, it costs the log and not the job
            self._lost[job] += len(events)
            self._give_up()
            self._rests_until_s = monotonic() + REST_S
            return f"{type(error).__name__}: {error}"
        return ""

    def is_idle(self, idle_s: float) -> bool:
        """Close the files without lines for this long; return whether the volumes can be given up."""
        now_s = monotonic()
        for job in [job for job, log in self._logs.items() if now_s - log.used_s >= idle_s]:
            self._close_log(job)
        return (
            not self._logs and now_s - self._used_s >= idle_s and (now_s >= self._rests_until_s or not idle_s)
        )

    def close(self) -> None:
        """Close the files, and give up the volumes."""
        for job in list(self._logs):
            self._close_log(job)
        self._give_up()

    def _append(self, files: Files, job: JobKey, events: Sequence[JobEvent], own_volume: str) -> None:
        if job.journal != self._journal:
            return  # its leases are in another journal, and so is its log
        log = self._logs.get(job) or self._open(files, job, events[0].role, own_volume)
        if log is None:
            return
        log.used_s = self._used_s
        self._write_lost(log, job, events[0].at_s)
        for event in events:
            self._write(log, event)
        log.writer.flush()
        self._lost.pop(job, None)
        if any(_is_last(event) for event in events):
            self._close_log(job)

    def _open(self, files: Files, job: JobKey, role: str, own_volume: str) -> _OpenLog | None:
        """Open a new file of a job's log, None if the job can have none."""
        members = None
        if not self._is_shared:
            own = None if job in self._without else make_log_volume(own_volume, self._settings)
            if own is None:
                self._without.add(job)
                return None
            members = (own,)
        path = log_path(new_log_name(job.job_id, job.short_id, role))
        try:
            writer = files.create(path, members=members)
        except ObjectNotFoundError:
            files.make_directory(JOB_LOGS, parents=True)
            writer = files.create(path, members=members)
        log = self._logs[job] = _OpenLog(writer, role)
        return log

    def _write(self, log: _OpenLog, event: JobEvent) -> None:
        line = msgspec.json.encode(msgspec.structs.replace(event, process=self._process))
        log.writer.write(line + b"\n")

    def _write_lost(self, log: _OpenLog, job: JobKey, at_s: float) -> None:
        if lost := self._lost[job]:
            self._write(log, JobEvent(at_s=at_s, event="lines lost", role=log.role, lines=lost))

    def _close_log(self, job: JobKey) -> None:
        """Close a file; one that fails is left to the recovery of its lease, with all flushed lines."""
        log = self._logs.pop(job)
        with suppress(LockgateError, RuntimeError, ValueError):
            at_s = self._clock.now_s()
            self._write_lost(log, job, at_s)
            self._write(log, JobEvent(at_s=at_s, event="closed", role=log.role))
            log.writer.close()
            self._lost.pop(job, None)

    def _open_files(self) -> Files:
        if self._files is None:
            journal = configured_journal(self._settings, self._clock)
            if journal is None:
                raise StoreUnavailableError("the journal is turned off")
            self._journal = journal.identity
            files = self._opened.enter_context(open_files(self._settings, clock=self._clock))
            keeps = files.journal_of(JOB_LOGS)
            # A journal that is no file may be one of several machines, and the home directory is on this one.
            self._is_shared = keeps.url.startswith("sqlite") or bool(read_places(keeps))
            self._files = files
        return self._files

    def _give_up(self) -> None:
        self._logs.clear()
        self._files = None
        self._opened.close()


def _is_last(event: JobEvent) -> bool:
    """Return whether a process most likely has no more lines: another one opens another file."""
    return event.event in _LAST or (
        event.event == "phase" and event.phase == JobPhase.COMMITTED and event.role == "driver"
    )
