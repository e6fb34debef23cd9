"""The jobs of a destination at a glance: what its folders say, the unreadable ones too."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.commit.leases.protocol import Leases, LeaseState, leases_for
from lockgate.storage_core.commit.records.job import JobRecord, Receipt
from lockgate.storage_core.commit.records.job_folder import JobFolder, job_ids
from lockgate.storage_core.commit.records.phase import TERMINAL, JobPhase
from lockgate.storage_core.errors import MalformedRecordError, ObjectNotFoundError
from lockgate.storage_core.ids import JobId
from lockgate.storage_core.settings import Settings, load_settings
from lockgate.storage_core.stores import Store, open_store


class JobSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One job of a destination.

    Attributes:
        phase: None if its markers cannot be read.
        lease: Of a job that has ended: lapsed as long as it is not cleaned up, then unknown.
        record: None if `job.json` is gone or cannot be read.
        is_remnant: `job.json` is gone: the rest of an old folder whose removal was cut short.
        retained_until_s: Until then its plan is kept for a later sweep.
        detail: What could not be read, its lease's journal too, for people.
    """

    job_id: JobId
    phase: JobPhase | None
    lease: LeaseState
    record: JobRecord | None
    receipt: Receipt | None
    is_remnant: bool = False
    retained_until_s: float = 0.0
    detail: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether a terminal marker stands; a lease says nothing any more then."""
        return self.phase in TERMINAL

    @property
    def needs_recovery(self) -> bool:
        """Whether recovery may have something to do; an ended job that has a lease is not cleaned up."""
        if self.is_remnant:
            return False
        return not self.has_ended or not (self.retained_until_s or self.lease is LeaseState.UNKNOWN)


def list_jobs(
    destination: str, *, settings: Settings | None = None, clock: Clock | None = None
) -> Iterator[JobSummary]:
    """Yield all jobs that a destination's folders know, the unreadable ones too.

    Raises:
        InvalidInputError: The destination cannot be.
    """
    settings = settings or load_settings()
    store = open_store(destination, settings)
    for job in job_ids(store):
        yield summarise(store, job, settings=settings, clock=clock or SystemClock())


def summarise(store: Store, job: JobId, *, settings: Settings, clock: Clock) -> JobSummary:
    """Read what a job's folder says."""
    return _summary(JobFolder(store, job), leases_for(settings, clock))


def receipt_of(folder: JobFolder) -> Receipt | None:
    """Return what a job published, None if it has not."""
    outcome = folder.outcome(folder.decision())
    return None if outcome is None else outcome.receipt


def _summary(folder: JobFolder, leases: Leases) -> JobSummary:
    record, phase, lease, receipt = None, None, LeaseState.UNKNOWN, None
    retained_until_s, is_remnant, detail = 0.0, False, ""
    try:
        record = folder.job()
        phase = folder.phase()
        receipt = receipt_of(folder)
        if phase not in TERMINAL:
            view = leases.look(folder, record)
            lease, detail = view.state, view.unread
        else:
            lease = LeaseState.LAPSED if folder.has_lease() else LeaseState.UNKNOWN
            retained_until_s = max(mark.retained_until_s for mark in folder.ended() if mark is not None)
    except ObjectNotFoundError as error:
        is_remnant, detail = record is None, str(error)
    except MalformedRecordError as error:
        detail = str(error)
    return JobSummary(
        job_id=folder.job_id,
        phase=phase,
        lease=lease,
        record=record,
        receipt=receipt,
        is_remnant=is_remnant,
        retained_until_s=retained_until_s,
        detail=detail,
    )
