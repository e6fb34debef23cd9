"""Summaries of a destination's jobs, read from their folders; unreadable jobs are included."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.commit.leases.job_lease import JobLeaseState
from lockgate.storage_core.commit.leases.leases_by_job import LeasesByJob
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.generations import is_over
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.job_listing import job_ids
from lockgate.storage_core.commit.records.job_record import JobRecord
from lockgate.storage_core.commit.records.log_records import Receipt
from lockgate.storage_core.commit.records.phase import TERMINAL, JobPhase
from lockgate.storage_core.errors import MalformedRecordError, ObjectNotFoundError
from lockgate.storage_core.ids import JobId
from lockgate.storage_core.settings import Settings, load_settings
from lockgate.storage_core.stores import Store, open_store


class JobSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One job of a destination.

    Attributes:
        phase: Phase; None if a marker cannot be read.
        lease: State of the lease. For an ended job: lapsed until the clean-up is complete, then unknown.
        record: Content of `job.json`; None if it is gone or cannot be read.
        is_partly_deleted: Whether `job.json` is gone, or a late set-up has written it again: a sweep deletes
            the rest of the folder.
        retained_until_s: Time until which the plan is kept for a later sweep.
        detail: Message about records, or a lease's journal, that cannot be read.
    """

    job_id: JobId
    phase: JobPhase | None
    lease: JobLeaseState
    record: JobRecord | None
    receipt: Receipt | None
    is_partly_deleted: bool = False
    retained_until_s: float = 0.0
    detail: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether the job has a terminal marker."""
        return self.phase in TERMINAL

    @property
    def needs_recovery(self) -> bool:
        """Whether recovery may have work to do. An ended job with a lease still needs its clean-up."""
        if self.is_partly_deleted:
            return False
        return not self.has_ended or not (self.retained_until_s or self.lease is JobLeaseState.UNKNOWN)


def list_jobs(
    destination: str, *, after: str = "", settings: Settings | None = None, clock: Clock | None = None
) -> Iterator[JobSummary]:
    """Yield all jobs that have a folder at a destination, also unreadable ones, while they are read.

    Args:
        destination: URL of the destination.
        after: Id of the job after which to begin; empty: with the first.
        settings: Settings; by default those of the environment.
        clock: Clock for leases, for tests.

    Raises:
        InvalidInputError: The destination is not valid.
    """
    settings = settings or load_settings()
    store = open_store(destination, settings)
    for job in job_ids(store, after_job=after):
        yield summarise(store, job, settings=settings, clock=clock or SystemClock())


def has_deleted_jobs(destination: str) -> bool:
    """Return whether a sweep may have deleted folders of ended jobs at a destination."""
    return any(open_store(destination, load_settings()).pages(layout.NAMES, page_size=1))


def summarise(store: Store, job: JobId, *, settings: Settings, clock: Clock) -> JobSummary:
    """Return the summary of one job."""
    folder = JobFolder(store, job)
    record, phase, lease, receipt = None, None, JobLeaseState.UNKNOWN, None
    retained_until_s, is_partly_deleted, detail = 0.0, False, ""
    try:
        record = folder.job()
        phase = folder.phase()
        receipt = receipt_of(folder)
        is_partly_deleted = phase is JobPhase.OPEN and is_over(store, job)
        if phase not in TERMINAL:
            view = LeasesByJob(settings, clock).look(folder, record)
            lease, detail = view.state, view.unread
        else:
            lease = JobLeaseState.LAPSED if folder.has_lease() else JobLeaseState.UNKNOWN
            retained_until_s = max(mark.retained_until_s for mark in folder.ended() if mark is not None)
    except ObjectNotFoundError as error:
        is_partly_deleted, detail = record is None, str(error)
    except MalformedRecordError as error:
        detail = str(error)
    return JobSummary(
        job_id=folder.job_id,
        phase=phase,
        lease=lease,
        record=record,
        receipt=receipt,
        is_partly_deleted=is_partly_deleted,
        retained_until_s=retained_until_s,
        detail=detail,
    )


def receipt_of(folder: JobFolder) -> Receipt | None:
    """Return the receipt of a job, at its end that of the terminal marker; None if it has not published."""
    outcome = folder.outcome(folder.decision())
    if outcome is None or outcome.receipt is None:
        return None
    success, _ = folder.ended()
    return outcome.receipt if success is None else success.receipt
