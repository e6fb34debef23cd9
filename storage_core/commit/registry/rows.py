"""The rows of the registry of jobs."""

from __future__ import annotations

from typing import ClassVar, Literal

from lockgate.storage_core.journal.entries.rows import Row


class Destination(Row, frozen=True):
    """A destination of jobs."""

    TABLE: ClassVar = "destination"
    KEY: ClassVar = ("url",)

    url: str
    first_s: float
    last_s: float


Phase = Literal["open", "committing", "aborting", "committed", "failed"]


class Job(Row, frozen=True):
    """A job in the registry. The store is authoritative.

    Attributes:
        set_up_s: When its `job.json` was created.
        changed_s: When the row was last written.
        ended_s: When its terminal marker was written, None before.
        job_attempt: Id of its newest driver run.
    """

    TABLE: ClassVar = "job"
    KEY: ClassVar = ("destination", "job_id")
    INDEXES: ClassVar = (("job_id",), ("phase",))

    destination: str
    job_id: str
    name: str
    short_id: str
    committer: str
    mode: str
    phase: Phase
    job_attempt: str
    set_up_s: float
    changed_s: float
    ended_s: float | None = None


class TaskAttempt(Row, frozen=True):
    """A committed task attempt.

    Attributes:
        rows: Number of rows, None if the writer did not count them.
    """

    TABLE: ClassVar = "task_attempt"
    KEY: ClassVar = ("destination", "job_id", "task_id", "attempt_id")

    destination: str
    job_id: str
    task_id: str
    attempt_id: str
    job_attempt: str
    files: int
    rows: int | None
    size_bytes: int
    committed_s: float
