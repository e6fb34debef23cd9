"""The rows of the registry of jobs."""

from __future__ import annotations

from typing import ClassVar, Final, Literal

from lockgate.storage_core.journal.entries.state import Row


class Destination(Row, frozen=True):
    """A destination of jobs."""

    TABLE: ClassVar = "destination"
    KEY: ClassVar = ("url",)

    url: str
    first_s: float
    last_s: float


UPLOADS_LEFT: Final = "uploads left"
UNDELETED_FILES: Final = "undeleted files"
RESTS: Final = (UPLOADS_LEFT, UNDELETED_FILES)
"""What an ended job could not delete; recovery tries again."""

Phase = Literal["open", "committing", "aborting", "committed", "failed"]


class Job(Row, frozen=True):
    """A job in the registry. The store is authoritative.

    Attributes:
        set_up_s: When its `job.json` was created.
        changed_s: When the row was last written.
        ended_s: When its terminal marker was written, None before.
        job_attempt: Id of its newest driver run.
        decided_s: When it was decided, as `COMMIT_STARTED` says; None before, or if it is not known.
        tasks: Number of tasks that it publishes, known from the decision on.
        files: Number of published files; None if it published none, as are `rows` and `size_bytes`.
        dag_id: DAG of the Airflow task that set it up; None without Airflow, as are the next three.
        attention: Why it needs a person although it is not at work: `quarantined`; `uploads left`, if it
            failed and could not abort all of its uploads; `undeleted files`, if it was published and the
            store refused to delete files that it replaced.
        reason: Beginning of why it was aborted, reverted, failed or set aside; None if it was not.
    """

    TABLE: ClassVar = "job"
    KEY: ClassVar = ("destination", "job_id")
    INDEXES: ClassVar = (
        ("job_id",),
        ("phase", "name", "destination", "job_id"),
        ("destination", "phase", "name", "job_id"),
        ("phase", "set_up_s"),
        ("destination", "phase", "set_up_s"),
        ("dag_id", "run_id", "task_id"),
        ("attention", "set_up_s"),
    )
    SORTED_FROM: ClassVar = "name"

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
    decided_s: float | None = None
    tasks: int | None = None
    files: int | None = None
    rows: int | None = None
    size_bytes: int | None = None
    dag_id: str | None = None
    run_id: str | None = None
    task_id: str | None = None
    map_index: int | None = None
    attention: str | None = None
    reason: str | None = None


class JobDay(Row, frozen=True):
    """Totals of the committed jobs that ended on one day, so that a chart reads no jobs.

    Attributes:
        destination: Destination of the jobs; empty: totals of all destinations.
        day: Number of the day in UTC, from 1970-01-01.
        rows: Sum of the rows of `with_rows` jobs; those of the others are not known.
        size_bytes: Sum of the sizes of `with_size` jobs.
        commit_ms: Sum of the times from the decision to the end of `with_time` jobs.
    """

    TABLE: ClassVar = "job_day"
    KEY: ClassVar = ("destination", "day")

    destination: str
    day: int
    jobs: int = 0
    rows: int = 0
    with_rows: int = 0
    size_bytes: int = 0
    with_size: int = 0
    commit_ms: int = 0
    with_time: int = 0


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
