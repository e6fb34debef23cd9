"""Find the jobs to recover: all jobs of the registry, or those with a folder at one destination.

Source: journal, "Leases"; commit protocol, "Recovery".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import msgspec

from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.commit.job_summary import JobSummary, summarise
from lockgate.storage_core.commit.leases.job_lease import JobLeaseState, own_journal
from lockgate.storage_core.commit.records.job_listing import list_job_folders
from lockgate.storage_core.commit.records.phase import UNDECIDED
from lockgate.storage_core.commit.recovery.recover import JobAt, RecoveryResult, recover_jobs
from lockgate.storage_core.commit.registry import queries as registry
from lockgate.storage_core.commit.registry.rows import Job as RegisteredJob
from lockgate.storage_core.concurrency import Progress, no_progress
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.ids import JobId
from lockgate.storage_core.journal import Journal, Leases, LeaseState, LeaseView
from lockgate.storage_core.settings import Settings, load_settings
from lockgate.storage_core.stores import open_store
from lockgate.storage_core.stores.open_store import canonical_url

LIVE: Final = "live"
SUSPENDED: Final = "suspended"
YOUNG: Final = "young, without a lease"
RECOVERED: Final = "under recovery"

_LEFT_ALONE: Final = {
    LeaseState.HELD: LIVE,
    LeaseState.SOFT: LIVE,
    LeaseState.SUSPENDED: SUSPENDED,
    LeaseState.RECOVERING: RECOVERED,
}
"""Why an undecided job with a lease in this state is left alone."""


class UnendedJobs(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that have not ended.

    Attributes:
        expired: Jobs to recover: with a lapsed or overdue lease, decided, or old without a lease; and ended
            jobs that have left something. Recovery watches an overdue lease first.
        left_alone: Number of other jobs, by the reason why they are left alone.
    """

    expired: tuple[JobAt, ...] = ()
    left_alone: dict[str, int] = {}

    def union(self, other: UnendedJobs) -> UnendedJobs:
        """Return the jobs of both, each expired job once."""
        return UnendedJobs(
            expired=tuple(dict.fromkeys([*self.expired, *other.expired])),
            left_alone=dict(Counter(self.left_alone) + Counter(other.left_alone)),
        )


def expired_jobs(settings: Settings, clock: Clock | None = None) -> UnendedJobs:
    """Return the unended jobs of the registry, at all destinations, with their leases on the primary.

    Raises:
        InvalidInputError: There is no journal, so there is no index of all jobs.
        JournalUnavailableError: The journal cannot be read.
    """
    journal = _registry(settings, clock)
    leases = Leases(journal)
    with journal.reading() as reading:
        now_s = reading.now_s()
        jobs = [
            (
                _at(job),
                _why_left_alone(job, None if lease is None else leases.watch(lease, now_s), now_s, settings),
            )
            for job, lease in registry.unended(reading)
        ]
        jobs += [(_at(job), None) for job in registry.ended_with_lease(reading, now_s, settings.lease_hard_s)]
        jobs += [(_at(job), None) for job in registry.ended_with_rest(reading)]
    return _partition(jobs)


def expired_jobs_at(
    destination: str, *, settings: Settings | None = None, clock: Clock | None = None
) -> UnendedJobs:
    """Return the unended jobs with a folder at a destination.

    Raises:
        LockgateError: The destination is not valid, or its store cannot be read.
    """
    settings = settings or load_settings()
    store, clock = open_store(destination, settings), clock or SystemClock()
    jobs = (summarise(store, job, settings=settings, clock=clock) for job in list_job_folders(store).others)
    url = canonical_url(store)  # as in the registry, so that a job in both is recovered once
    return _partition(
        [(JobAt(url, job.job_id), _why_left_alone_at(job)) for job in jobs if job.needs_recovery]
    )


def registered_job(settings: Settings, text: str, clock: Clock | None = None) -> JobAt:
    """Return the job of the registry with an id, or the newest generation of a name.

    Raises:
        InvalidInputError: There is no journal, so there is no index of all jobs.
        ObjectNotFoundError: The registry has no such job.
        ConflictError: Several destinations have such a job; the message names them.
    """
    with _registry(settings, clock).reading() as reading:
        return _at(registry.find_job(reading, text))


def recent_destinations(settings: Settings, within_s: float, clock: Clock | None = None) -> list[str]:
    """Return the destinations of the registry at which a job has changed in the last `within_s` seconds."""
    with _registry(settings, clock).reading() as reading:
        return registry.destinations(reading, changed_since_s=reading.now_s() - within_s)


def recover_everything(
    settings: Settings, *, dry_run: bool = False, clock: Clock | None = None, progress: Progress = no_progress
) -> Iterator[RecoveryResult]:
    """Recover every expired job of the registry, at all destinations; see `recover_jobs`.

    Raises:
        InvalidInputError: There is no journal, so there is no index of all jobs.
        JournalUnavailableError: The journal cannot be read; nothing was done.
    """
    jobs = expired_jobs(settings, clock).expired
    return recover_jobs(jobs, dry_run=dry_run, settings=settings, clock=clock, progress=progress)


def _at(job: RegisteredJob) -> JobAt:
    return JobAt(job.destination, JobId(job.job_id))


def _registry(settings: Settings, clock: Clock | None) -> Journal:
    journal = own_journal(settings, clock or SystemClock())
    if journal is None:
        raise InvalidInputError(
            "recovery of all destinations needs the journal, and LOCKGATE_JOURNAL_URL=none: there is none; "
            "nothing was done; name a destination, or scan a prefix"
        )
    return journal


def _why_left_alone(
    job: RegisteredJob, lease: LeaseView | None, now_s: float, settings: Settings
) -> str | None:
    """Return why a job of the registry is left alone; None if it is to be recovered, or to be watched."""
    state = None if lease is None else lease.state
    if lease is not None and lease.is_overdue:
        return None
    if state is LeaseState.RECOVERING:
        return RECOVERED
    if job.phase not in registry.UNDECIDED:
        return None  # any process may roll a decided job forward, even if its driver is alive
    if state is None:
        return YOUNG if now_s - job.set_up_s < settings.orphan_age_s else None
    return _LEFT_ALONE.get(state)


def _why_left_alone_at(job: JobSummary) -> str | None:
    """Return why a job of a destination is left alone; None if it is to be recovered."""
    if job.phase not in UNDECIDED:
        return None
    return {JobLeaseState.LIVE: LIVE, JobLeaseState.SUSPENDED: SUSPENDED}.get(job.lease)


def _partition(jobs: list[tuple[JobAt, str | None]]) -> UnendedJobs:
    return UnendedJobs(
        expired=tuple(sorted({job for job, why in jobs if why is None})),
        left_alone=dict(Counter(why for _, why in jobs if why is not None)),
    )
