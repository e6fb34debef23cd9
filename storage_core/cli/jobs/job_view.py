"""One job as the command line shows it, found by its id or its name."""

from __future__ import annotations

import msgspec

from lockgate.storage_core.clock import SystemClock
from lockgate.storage_core.commit import Job, JobPhase, LeaseState, Receipt, attach_job
from lockgate.storage_core.commit.leases.protocol import leases_for
from lockgate.storage_core.commit.publish.file_report import read_fates
from lockgate.storage_core.commit.publish.success_file import SuccessSummary, find_success
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.job import Decision, Ended, JobRecord, Report
from lockgate.storage_core.commit.records.job_folder import JobFolder, job_ids
from lockgate.storage_core.errors import InvalidInputError, ObjectNotFoundError
from lockgate.storage_core.ids import JobAttemptId, JobId, job_name, split_job_id
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.stores import open_store


class TaskCount(msgspec.Struct, frozen=True, kw_only=True):
    """How far the tasks of a job attempt are.

    Attributes:
        expected: None where the driver has not frozen a list.
    """

    committed: int
    expected: int | None

    @property
    def text(self) -> str:
        """How many are expected, for people."""
        return "an unknown number" if self.expected is None else str(self.expected)


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """What stands in the store about one job.

    Attributes:
        job_attempt: The newest, while the job has not ended.
        tasks: Of that job attempt.
        report: From the job's end on; with every file's fate where they were asked for.
        success: `_SUCCESS`, as long as no later job has taken its place.
    """

    record: JobRecord
    phase: JobPhase
    lease: LeaseState
    job_attempt: JobAttemptId | None
    tasks: TaskCount | None
    decision: Decision | None
    receipt: Receipt | None
    ended: Ended | None
    report: Report | None
    success: SuccessSummary | None


def view_job(destination: str, text: str, *, every_fate: bool = False) -> JobView:
    """Read all that stands in the store about a job.

    Args:
        destination: Of the job.
        text: Its id, or its name for the newest generation.
        every_fate: Gather the shards of a long report, too.

    Raises:
        ObjectNotFoundError: There is no such job.
        MalformedRecordError: A record of it is not what it should be.
    """
    job = attach_job(destination, find_job(destination, text))
    folder = JobFolder(job.store, job.job_id)
    success, failure = folder.ended()
    ended = success or failure
    report = folder.report()
    if every_fate and report is not None:
        report = msgspec.structs.replace(report, shards=(), fates=tuple(read_fates(folder)))
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
    """Return the id of a job, given that id, or a name for its newest generation.

    Raises:
        ObjectNotFoundError: No job has this name. (Whether an id's job is there, reading it tells.)
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
            f"no job named {text!r} at {destination}; `lockgate jobs list {destination}` shows them"
        )
    return generations[newest]


def lease_of(job: Job) -> LeaseState:
    """Return how a job's lease stands now."""
    return leases_for(load_settings(), SystemClock()).look(JobFolder(job.store, job.job_id)).state


def _success(job: Job) -> SuccessSummary | None:
    standing = find_success(job.store)
    return standing if standing is not None and standing.job_id == job.job_id else None


def _tasks(job: Job) -> TaskCount:
    expected = job.expected()
    return TaskCount(
        committed=len({found.task_id for found in job.pending_sets()}),
        expected=None if expected is None else len(expected.tasks),
    )
