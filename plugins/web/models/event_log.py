"""The event log of a job."""

from __future__ import annotations

from pydantic import Field

from lockgate.plugins.web.models.model import Model


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
    ended_s: float | None
    action: str
    why: str
    result: str
    phase: str


class JobLog(Model):
    """The newest lines of a job's event log, the oldest of them first.

    Attributes:
        is_cut: Whether there are earlier lines.
        recoveries: Recoveries of the job in the lines that were read, the oldest first.
        unknown: What could not be read, and why: lines may be missing.
    """

    lines: tuple[LogLine, ...]
    files: tuple[LogFile, ...]
    is_cut: bool
    recoveries: tuple[Recovery, ...] = Field(default=())
    unknown: tuple[str, ...] = Field(default=())
