"""What the registry knows of jobs: an index over what the stores say."""

from __future__ import annotations

from typing import ClassVar, Literal

from lockgate.storage_core.journal.entries.rows import Row


class Destination(Row, frozen=True):
    """A place that jobs write."""

    TABLE: ClassVar = "destination"
    KEY: ClassVar = ("url",)

    url: str
    first_s: float
    last_s: float


Phase = Literal["open", "committing", "aborting", "committed", "failed"]


class Job(Row, frozen=True):
    """A job as the registry knows it: an index over what the store says, which alone decides.

    Attributes:
        set_up_s: When its `job.json` was created.
        changed_s: When the registry last heard of it.
        ended_s: When its terminal marker was written, None before.
        job_attempt: The newest run of its driver.
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
    """A task commit as the registry knows it.

    Attributes:
        rows: Where the writer counted them.
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
