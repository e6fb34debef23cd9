"""A job's event log, as one list of lines: the files of all its processes, in the order of time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.commit.job_events import JobEvent
from lockgate.storage_core.commit.records.phase import TERMINAL
from lockgate.storage_core.decoding import decode_json
from lockgate.storage_core.errors import NotAppliedError, OutcomeUnknownError
from lockgate.storage_core.event_log.event_files import files_of_job, log_path, log_prefix
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.namespace.queries import FileStatus
from lockgate.storage_core.files.reader import Reader

FOLLOW_S: Final = 0.3
LATE_S: Final = 5.0
"""How long a follower waits after the job's end for last lines: those of a killed process never come."""

_ENDS: Final = frozenset(str(phase) for phase in TERMINAL)


class LogFile(msgspec.Struct, frozen=True, kw_only=True):
    """The file of one process.

    Attributes:
        name: Its name in the directory of logs.
        state: `open`: its process writes it, or has ended without closing it; `closed`; `cut`: a recovery
            has closed it, and its process may have had more lines.
        why_not: Why it could not be read now; empty if it was.
    """

    name: str
    state: str
    why_not: str = ""


class MergedLog:
    """The lines of a job's log, read once or again and again.

    Attributes:
        files: The files at the last read.
        has_end: Whether a line says that the job has ended.
        is_cut: Whether earlier lines were left out because of `tail_bytes`.
    """

    def __init__(self, files: Files, job_id: str, short_id: str, *, tail_bytes: int | None = None) -> None:
        """Read a log from its beginning.

        Args:
            files: The appendable files of the job's journal.
            job_id: Id of the job.
            short_id: Its short id.
            tail_bytes: Read at most the last bytes of each file, from a line's beginning.
        """
        self.files: tuple[LogFile, ...] = ()
        self.has_end = False
        self.is_cut = False
        self._namespace = files
        self._prefix = log_prefix(job_id, short_id)
        self._tail_bytes = tail_bytes
        self._opened: dict[str, _OneFile] = {}

    @property
    def is_open(self) -> bool:
        """Whether a file may get more lines."""
        return any(file.state == "open" for file in self.files)

    def read(self) -> list[JobEvent]:
        """Return the lines since the last read, in the order of their times.

        A file that cannot be read now is read by a later call; `files` names the reason.
        """
        found: list[tuple[float, str, JobEvent]] = []
        files = []
        for status in files_of_job(self._namespace, self._prefix):
            one = self._opened.setdefault(status.name, _OneFile())
            why_not = ""
            try:
                events = one.read(self._namespace, status, self._tail_bytes)
                self.is_cut = self.is_cut or one.is_cut
            except (NotAppliedError, OutcomeUnknownError) as error:
                events, why_not = [], str(error)
            found += [(event.at_s, status.name, event) for event in events]
            state = "open" if status.is_open else "closed" if one.is_whole else "cut"
            files.append(LogFile(name=status.name, state=state, why_not=why_not))
        self.files = tuple(files)
        found.sort(key=lambda line: line[:2])
        self.has_end = self.has_end or any(event.phase in _ENDS for _, _, event in found)
        return [event for _, _, event in found]

    def follow(self, has_ended: Callable[[], bool], clock: Clock) -> Iterator[list[JobEvent]]:
        """Yield new lines until the job has ended and its processes have closed their files.

        Args:
            has_ended: Returns whether the job has ended.
            clock: Waits between two reads.
        """
        ended_s = None
        while True:
            if ended_s is None and has_ended():  # before the read: it finds what was written until then
                ended_s = clock.monotonic_s()
            yield self.read()
            if ended_s is not None:
                is_late = clock.monotonic_s() - ended_s >= LATE_S
                if is_late or (self.has_end and not self.is_open):
                    return
            clock.sleep(FOLLOW_S)


class _OneFile:
    """One file, and what was read of it."""

    def __init__(self) -> None:
        self.is_whole = False
        self.is_cut = False
        self._reader: Reader | None = None
        self._rest = b""
        self._is_read = False

    def read(self, files: Files, status: FileStatus, tail_bytes: int | None) -> list[JobEvent]:
        """Return the new lines."""
        if self._is_read:
            return []
        if self._reader is None:
            self._reader = files.open(log_path(status.name))
            end = self._reader.seek(0, 2) if tail_bytes is not None else 0
            begin = 0 if tail_bytes is None else max(0, end - tail_bytes)
            self._reader.seek(begin)
            if begin:
                self._reader.readline()
                self.is_cut = True
        *lines, self._rest = (self._rest + self._reader.read()).split(b"\n")
        self._is_read = not status.is_open  # the status is older than the read
        events = [event for line in lines if (event := _decoded(line)) is not None]
        self.is_whole = self.is_whole or any(event.event == "closed" for event in events)
        return events


def _decoded(line: bytes) -> JobEvent | None:
    """Return a line, None if it is damaged: a recovery may close a file within a line."""
    try:
        return decode_json(line, JobEvent)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
