"""The event logs that this process writes: a bounded queue, and a thread that appends and flushes.

A caller never waits for a volume or the journal. What does not fit into the queue is lost and counted; the
log has the number.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections import Counter, deque
from typing import Final

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.commit.job_events import JobEvent
from lockgate.storage_core.commit.records.job_record import JobRecord
from lockgate.storage_core.event_log.event_writers import JobKey, LogWriters, Losses, Queued
from lockgate.storage_core.forks import FORKS, Forkable
from lockgate.storage_core.settings import Settings

LOG: Final = logging.getLogger("lockgate.event_log")

QUEUED: Final = 10_000
"""Most lines that wait; a line has some 200 bytes."""
FLUSH_EVERY_S: Final = 1.0
"""Lines of this time are appended and flushed together."""
IDLE_S: Final = 10.0
"""After this time without lines a file is closed."""
EXIT_S: Final = 5.0
"""How long the end of the process waits for the last lines."""


class EventQueue(Forkable):
    """The logs of one process. A fork writes none of its parent's."""

    def __init__(self) -> None:
        self.after_fork_in_child()
        FORKS.register(self)

    def after_fork_in_child(self) -> None:
        """Start without lines, files and a thread."""
        self._changed = threading.Condition()
        self._queue: deque[Queued] = deque()
        self._lost: Counter[JobKey] = Counter()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._is_waiting = False
        self._losses = Losses()

    def append(
        self, job: JobRecord, event: JobEvent, settings: Settings, clock: Clock, own_volume: str
    ) -> None:
        """Append an event to a job's log, without waiting."""
        with self._changed:
            if len(self._queue) >= QUEUED:
                self._lost[JobKey.of(job, settings)] += 1
                return
            self._queue.append(Queued(job, event, settings, clock, own_volume))
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="lockgate-event-log", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # the process has too many threads, or is ending
                    self._queue.clear()
                    LOG.warning("no event log is written: %s", error)
                    return
                self._thread = thread
            if self._is_waiting:  # not while it gathers lines: each notice would wake it
                self._changed.notify()

    def close(self, timeout_s: float) -> None:
        """Append the waiting lines, close all files and end the thread; give up after the timeout."""
        with self._changed:
            thread = self._thread
            self._closing = thread is not None
            self._changed.notify()
        if thread is not None:
            thread.join(timeout_s)
            if thread.is_alive():
                LOG.warning(
                    "the event log may lack its last lines: its volumes or the journal gave no answer within "
                    "%g s; the jobs are not affected",
                    timeout_s,
                )

    def _run(self) -> None:
        changed, writers = self._changed, LogWriters(self._losses)
        try:
            while True:
                with changed:
                    self._is_waiting = True
                    changed.wait_for(lambda: self._queue or self._closing, IDLE_S)
                    self._is_waiting = False
                    batch, lost = list(self._queue), self._lost
                    self._queue.clear()
                    self._lost = Counter()
                    is_closing = self._closing
                writers.append(batch, lost)
                writers.close_idle(0.0 if is_closing else IDLE_S)
                with changed:
                    if not self._queue and (is_closing or writers.is_empty):
                        self._thread, self._closing = None, False
                        return
                    changed.wait_for(lambda: self._closing, FLUSH_EVERY_S)
        finally:
            writers.close()
            with changed:
                if self._thread is threading.current_thread():
                    self._thread = None


_LOGS: Final = EventQueue()


def append_event(job: JobRecord, event: JobEvent, settings: Settings, clock: Clock, own_volume: str) -> None:
    """Append an event to a job's log, without waiting.

    Args:
        job: The job.
        event: The event.
        settings: See `open_files`.
        clock: Clock of the job.
        own_volume: URL of the volume of this log, used if the machines of the journal share no other.
    """
    _LOGS.append(job, event, settings, clock, own_volume)


def close_event_logs(timeout_s: float = EXIT_S) -> None:
    """Append the waiting lines of this process and close its files.

    For a process that ends without Python's exit handlers, and for tests. It returns after the timeout even
    if a volume has not answered; the files are then left to the recovery of their leases.
    """
    _LOGS.close(timeout_s)


# Registered after the journals' own handler, so it runs before the journals are closed.
atexit.register(close_event_logs)
