"""Find a job by id or name, and read a bounded number of its records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

import msgspec

from lockgate.storage_core.clock import SystemClock
from lockgate.storage_core.commit.decide.plan import Plan, read_plan
from lockgate.storage_core.commit.job import Job
from lockgate.storage_core.commit.leases.job_lease import JobLeaseState
from lockgate.storage_core.commit.leases.leases_by_job import LeasesByJob
from lockgate.storage_core.commit.records.create_if_absent import find
from lockgate.storage_core.commit.records.generations import EndedGeneration, newest_generation, recorded_end
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.job_record import JobRecord, LeaseRecord
from lockgate.storage_core.commit.records.log_records import Outcome
from lockgate.storage_core.commit.records.pending_set import AuditVerdict
from lockgate.storage_core.commit.records.phase import JobPhase, phase_of
from lockgate.storage_core.commit.records.plan_records import Decision
from lockgate.storage_core.commit.records.report import Ended, Report
from lockgate.storage_core.errors import InvalidInputError, LockgateError, ObjectNotFoundError
from lockgate.storage_core.ids import JobAttemptId, JobId, job_id, job_name, split_job_id
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.stores import open_store

T = TypeVar("T")

COUNTED_PAGES: Final = 3
"""Pages of a listing from which tasks are counted: 3,000 attempts."""


class TaskCount(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of the tasks of a job attempt.

    Attributes:
        committed: Number of committed tasks.
        expected: Number of expected tasks; None if the driver has not frozen a list.
    """

    committed: int
    expected: int | None

    @property
    def text(self) -> str:
        """The number of expected tasks as text."""
        return "an unknown number" if self.expected is None else str(self.expected)


class JobRecords(msgspec.Struct, frozen=True, kw_only=True):
    """The records of a job that people look at: a fixed number of them, whatever the job's size.

    Attributes:
        record: Content of `job.json`, or of its copy after the folder's deletion; None if both are gone or
            cannot be read.
        is_partly_deleted: Whether `job.json` is gone: a crash interrupted the deletion of an old folder.
        phase: Phase; None if a marker cannot be read, or markers contradict each other.
        plan: Plan of the decision, until the clean-up.
        report: Report after the end; of a long one, it has the files of the last files only.
        audit: Verdict on the data of the plan, else the newest one.
        lease: Content of `lease.json`; an ended job that has it is not cleaned up.
        unread: Why records could not be read, one sentence each.
    """

    record: JobRecord | None
    is_partly_deleted: bool
    phase: JobPhase | None
    decision: Decision | None
    outcome: Outcome | None
    ended: Ended | None
    plan: Plan | None
    report: Report | None
    audit: AuditVerdict | None
    lease: LeaseRecord | None
    unread: tuple[str, ...]


def read_records(folder: JobFolder) -> JobRecords:
    """Read a job's records. One that cannot be read does not hide the others."""
    reader = _Reader(folder)
    record, report = reader.tried(reader.record), reader.tried(folder.report)
    marks = reader.tried(reader.marks) or _Marks()
    plan = reader.tried(lambda: reader.plan(marks.decision))
    audit = reader.tried(lambda: reader.audit(plan))
    return JobRecords(
        record=record,
        is_partly_deleted=reader.is_partly_deleted,
        phase=marks.phase,
        decision=marks.decision,
        outcome=marks.outcome,
        ended=marks.ended,
        plan=plan,
        report=report,
        audit=audit,
        lease=reader.tried(lambda: find(folder.store, LeaseRecord, folder.key("lease.json"))),
        unread=tuple(reader.unread),
    )


def count_tasks(folder: JobFolder, job_attempt: JobAttemptId | None) -> TaskCount | None:
    """Return the progress of an undecided job from a listing; None if it has too many tasks for a page.

    Of a job without a task list, the tasks of earlier job attempts count too.
    """
    expected = None if job_attempt is None else folder.expected(job_attempt)
    committed: set[str] = set()
    for number, page in enumerate(folder.store.pages(folder.key("tasks/"))):
        if number == COUNTED_PAGES:
            return None
        committed.update(info.key.split("/")[-2] for info in page if info.key.endswith(".pendingset"))
    if expected is not None:
        committed &= {task.task_id for task in expected.tasks}
    return TaskCount(committed=len(committed), expected=None if expected is None else len(expected.tasks))


class _Marks(NamedTuple):
    phase: JobPhase | None = None
    decision: Decision | None = None
    outcome: Outcome | None = None
    ended: Ended | None = None


@dataclass
class _Reader:
    """Reads records of one job, and collects why some cannot be read."""

    folder: JobFolder
    unread: list[str] = field(default_factory=list)
    is_partly_deleted: bool = False
    end: EndedGeneration | None = None

    def tried(self, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except LockgateError as error:
            self.unread.append(str(error))
            return None

    def record(self) -> JobRecord | None:
        try:
            return self.folder.job()
        except ObjectNotFoundError:
            self.end = recorded_end(self.folder.store, self.folder.job_id)
            self.is_partly_deleted = self.end is None
            return None if self.end is None else self.end.job

    def marks(self) -> _Marks:
        """Read the decision first: a job that ends meanwhile must not seem to have ended without one."""
        if self.end is not None:
            return _Marks(self.end.phase, ended=self.end.ended)
        decision = self.folder.decision()
        if decision is None:
            return _Marks(JobPhase.OPEN)
        try:
            outcome = self.folder.outcome(decision)
            success, failure = self.folder.ended()
            phase = phase_of(decision, outcome, success, failure)
        except LockgateError as error:
            self.unread.append(str(error))
            return _Marks(decision=decision)
        return _Marks(phase, decision, outcome, success or failure)

    def plan(self, decision: Decision | None) -> Plan | None:
        if decision is None or decision.plan is None:
            return None
        try:
            return read_plan(self.folder, decision.plan)
        except ObjectNotFoundError:
            return None  # cleaned up

    def audit(self, plan: Plan | None) -> AuditVerdict | None:
        if plan is not None:
            return self.folder.audit(plan.head.chosen_digest)
        return self.folder.newest_audit()


def find_job(destination: str, text: str) -> JobId:
    """Return the id of a job for this id, or for the name of its newest generation.

    Raises:
        ObjectNotFoundError: No job has this name. (The existence of an id is not checked.)
    """
    try:
        split_job_id(text)
    except InvalidInputError:
        name = job_name(text)
    else:
        return JobId(text)
    found = newest_generation(open_store(destination, load_settings()), name, SystemClock())
    newest = found.generation if found.has_begun else found.generation - 1
    if not newest:
        raise ObjectNotFoundError(
            f"no job named {text!r} at {destination}; `lockgate jobs list {destination}` lists them"
        )
    return job_id(name, newest)


def lease_of(job: Job) -> JobLeaseState:
    """Return the current state of a job's lease; watch an overdue one until it is renewed or has lapsed."""
    clock, folder = SystemClock(), JobFolder(job.store, job.job_id)
    leases = LeasesByJob(load_settings(), clock)
    view = leases.look(folder)
    if view.state is JobLeaseState.OVERDUE:
        view = leases.look_again(folder, job.record, view, "this command")
    return view.state
