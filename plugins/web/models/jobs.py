"""Jobs: a row of the list, and all that is known about one job."""

from __future__ import annotations

from typing import Literal

from lockgate.plugins.web.models.model import Model

Needs = Literal["nothing", "wait", "you"]
"""What a job needs: nothing, because it has ended; to wait, because it is at work; or a person."""


class Origin(Model):
    """The Airflow task that set a job up.

    Attributes:
        triggered_by: User who triggered the DAG run, in a job and in a destination's log; empty elsewhere,
            for a schedule, and if Airflow has the run no more.
    """

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1
    triggered_by: str = ""


class JobRow(Model):
    """A job in the list.

    Attributes:
        phase: Phase in the registry: `open`, `committing`, `aborting`, `committed` or `failed`.
        needs_why: One sentence: why the job waits or needs a person; empty for `nothing`.
        lease: State of the driver's lease; None if the job has ended or has none.
        tasks_expected: None if the driver has not frozen its list of tasks.
        rows: None if any writer did not count them.
        commit_s: Seconds from the decision to the end; None before, or if unknown.
    """

    job_id: str
    destination: str
    name: str
    phase: str
    needs: Needs
    needs_why: str
    lease: str | None
    mode: str
    committer: str
    origin: Origin | None
    tasks_committed: int
    tasks_expected: int | None
    files: int | None
    rows: int | None
    size_bytes: int | None
    created_s: float
    changed_s: float
    ended_s: float | None
    commit_s: float | None


class JobCounts(Model):
    """How many jobs need something, for the card on the home page.

    Attributes:
        needs_you: At most 100.
        unended: At most 1,000.
    """

    needs_you: int
    unended: int
    first: tuple[JobRow, ...]


class Step(Model):
    """One step of a job: set up, writing, committed tasks, audited, decided, published, ended.

    Attributes:
        state: `done`, `now`, `todo`, `failed`, or `skipped` (no audit was required).
        at_s: When it was done, if it is known.
        text: One sentence for a person who has never seen Lockgate.
    """

    name: str
    state: Literal["done", "now", "todo", "failed", "skipped"]
    at_s: float | None
    text: str


class Possible(Model):
    """An action that is offered for a job.

    Attributes:
        is_allowed: Whether the protocol allows it now; whether the user may do it is asked elsewhere.
        text: What it will do; or, if it is not allowed, why not.
    """

    action: Literal["recover", "abort"]
    is_allowed: bool
    text: str


class AuditResult(Model):
    """The audit's verdict.

    Attributes:
        verdict: `passed` or `failed`; None without a verdict.
        suite: Name of the suite.
        failing: The failing expectations, each with sample values.
    """

    is_required: bool
    verdict: str | None
    decided_s: float | None
    suite: str = ""
    failing: tuple[FailedExpectation, ...] = ()


class FailedExpectation(Model):
    """An expectation that the rows do not meet."""

    expectation: str
    column: str | None
    text: str
    samples: tuple[str, ...] = ()


class JobDetail(Model):
    """All that is known about a job.

    Attributes:
        decided_by: User, host and process that decided it; empty before, or if it cannot be read.
        summary: Where the job stands and what follows, in one to three sentences.
        steps: The seven steps, in order.
        receipt: Summary of what was published; None before.
        counts: Files by result, from the report; None before the end.
        unknown: Records that could not be read, one sentence each.
    """

    row: JobRow
    summary: str
    description: str
    created_by: str
    decided_by: str = ""
    job_attempt: str | None
    journal: str
    steps: tuple[Step, ...]
    actions: tuple[Possible, ...]
    audit: AuditResult
    receipt: PublishedJob | None
    reason: str
    counts: dict[str, int] | None
    unknown: tuple[str, ...] = ()


class PublishedJob(Model):
    """The receipt of a published job."""

    turn: int
    mode: str
    committer: str
    files: int
    rows: int | None
    size_bytes: int
    removed_files: int
    published_s: float


class JobReport(Model):
    """The report of an ended job, without its files.

    Attributes:
        ended: `committed` or `failed`.
        counts: Files by result.
    """

    ended: str
    reason: str
    counts: dict[str, int]
    receipt: PublishedJob | None


class Attempt(Model):
    """A committed task attempt.

    Attributes:
        files: Number of its files; None, as `size_bytes`, if the record is too long for a page and the
            registry does not have the attempt.
        counts: Whether the job publishes this attempt and no other of the same task; None if it is unknown.
    """

    task_id: str
    attempt_id: str
    job_attempt: str
    committed_s: float
    files: int | None
    rows: int | None
    size_bytes: int | None
    counts: bool | None


class JobFile(Model):
    """A file of a job.

    Attributes:
        state: `pending`, `planned`, or a result of the report: `published`, `lost`, `reverted`, `aborted`, …
    """

    key: str
    state: str
    size_bytes: int | None
    rows: int | None
    detail: str = ""


class JobPlan(Model):
    """The frozen plan of a commit, without its files."""

    digest: str
    turn: int
    mode: str
    added_files: int
    added_rows: int | None
    added_bytes: int
    removed_files: int
    removed_rows: int | None
    removed_bytes: int
