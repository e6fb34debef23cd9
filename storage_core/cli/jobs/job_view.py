"""Find a job by id or name, and read all of its records."""

from __future__ import annotations

import msgspec

from lockgate.storage_core.clock import SystemClock
from lockgate.storage_core.commit.job import Job
from lockgate.storage_core.commit.leases.job_leases import LeasesByJob
from lockgate.storage_core.commit.leases.protocol import JobLeaseState
from lockgate.storage_core.commit.open_or_attach import attach_job
from lockgate.storage_core.commit.publish.file_report import read_file_fates
from lockgate.storage_core.commit.publish.success_file import SuccessSummary, find_success
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.destination_log.outcome import Receipt
from lockgate.storage_core.commit.records.job import JobRecord
from lockgate.storage_core.commit.records.job_folder import JobFolder, job_ids
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.commit.records.plan import Decision
from lockgate.storage_core.commit.records.report import Ended, Report
from lockgate.storage_core.errors import InvalidInputError, ObjectNotFoundError
from lockgate.storage_core.ids import JobAttemptId, JobId, job_name, split_job_id
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.stores import open_store


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


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """All records of a job in the store.

    Attributes:
        job_attempt: The newest job attempt, until the job has ended.
        tasks: Progress of the tasks of that job attempt.
        report: Report after the job's end, with the fate of every file if requested.
        success: `_SUCCESS`, unless a later job has replaced it.
    """

    record: JobRecord
    phase: JobPhase
    lease: JobLeaseState
    job_attempt: JobAttemptId | None
    tasks: TaskCount | None
    decision: Decision | None
    receipt: Receipt | None
    ended: Ended | None
    report: Report | None
    success: SuccessSummary | None


def view_job(destination: str, text: str, *, every_file: bool = False) -> JobView:
    """Read all records of a job in the store.

    Args:
        destination: Destination of the job.
        text: Id of the job, or its name for the newest generation.
        every_file: Whether to read the fate of every file from the shards of the report.

    Raises:
        ObjectNotFoundError: There is no such job.
        MalformedRecordError: A record of the job is malformed.
    """
    job = attach_job(destination, find_job(destination, text))
    folder = JobFolder(job.store, job.job_id)
    success, failure = folder.ended()
    ended = success or failure
    report = folder.report()
    if every_file and report is not None:
        report = msgspec.structs.replace(report, shards=(), fates=tuple(read_file_fates(folder)))
    return JobView(
        record=job.record,
        phase=job.phase(),
        lease=lease_of(job),
        job_attempt=job.job_attempt if ended is None else None,
        tasks=_tasks(job) if ended is None else None,
        decision=folder.decision(),
        receipt=job.receipt,
        ended=ended,
        report=report,
        success=_success(job),
    )


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
    found = list(job_ids(open_store(destination, load_settings()), f"{layout.JOBS}{name}-g"))
    generations = {split_job_id(job): job for job in found}
    newest = max((key for key in generations if key[0] == name), default=None)
    if newest is None:
        raise ObjectNotFoundError(
            f"no job named {text!r} at {destination}; `lockgate jobs list {destination}` lists them"
        )
    return generations[newest]


def lease_of(job: Job) -> JobLeaseState:
    """Return the current state of a job's lease; watch an overdue one until it is renewed or has lapsed."""
    clock, folder = SystemClock(), JobFolder(job.store, job.job_id)
    leases = LeasesByJob(load_settings(), clock)
    view = leases.look(folder)
    if view.state is JobLeaseState.OVERDUE:
        view = leases.look_again(folder, job.record, view, "this command")
    return view.state


def _success(job: Job) -> SuccessSummary | None:
    success = find_success(job.store)
    return success if success is not None and success.job_id == job.job_id else None


def _tasks(job: Job) -> TaskCount:
    expected = job.expected()
    return TaskCount(
        committed=len({found.task_id for found in job.pending_sets()}),
        expected=None if expected is None else len(expected.tasks),
    )
