"""Which jobs recovery looks at: the registry's, over all destinations, or those of one destination's folders.

Source: journal, "Leases"; commit protocol, "Recovery".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.commit.destination.location import canonical_url
from lockgate.storage_core.commit.job_summary import JobSummary, summarise
from lockgate.storage_core.commit.leases.job_journal import own_journal
from lockgate.storage_core.commit.leases.protocol import JobLeaseState
from lockgate.storage_core.commit.records.job_listing import list_job_folders
from lockgate.storage_core.commit.records.phase import UNDECIDED
from lockgate.storage_core.commit.recovery.recover import JobAt, RecoveryResult, settle
from lockgate.storage_core.commit.registry import queries as registry
from lockgate.storage_core.commit.registry.rows import Job as RegisteredJob
from lockgate.storage_core.concurrency import Progress, no_progress
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.ids import JobId
from lockgate.storage_core.journal import LeaseState, Reading
from lockgate.storage_core.journal.entries.leases import TAKES, state_of
from lockgate.storage_core.journal.entries.rows import Lease
from lockgate.storage_core.settings import Settings, load_settings
from lockgate.storage_core.stores import open_store

LIVE: Final = "live"
PARKED: Final = "parked"
YOUNG: Final = "young, without a lease"
RECOVERED: Final = "under recovery"

_LEFT: Final = {
    LeaseState.HELD: LIVE,
    LeaseState.SOFT: LIVE,
    LeaseState.PARKED: PARKED,
    LeaseState.RECOVERING: RECOVERED,
}
"""Undecided jobs with such a lease are left alone, and called so."""


class Unended(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that have not ended.

    Attributes:
        lapsed: Those that recovery settles: lapsed, decided, or old and without a lease; and ended ones whose
            lease was left behind.
        left: How many others there are, by why they are left alone.
    """

    lapsed: tuple[JobAt, ...] = ()
    left: dict[str, int] = {}

    def with_more(self, other: Unended) -> Unended:
        """Return both together; a job that both name is named once."""
        left = {why: self.left.get(why, 0) + other.left.get(why, 0) for why in [*self.left, *other.left]}
        return Unended(lapsed=tuple(dict.fromkeys([*self.lapsed, *other.lapsed])), left=left)


def lapsed_jobs(settings: Settings, clock: Clock | None = None) -> Unended:
    """Return the registry's unended jobs, over all destinations, as their leases stand on the primary.

    Args:
        settings: Name the journal. A job without a lease is not looked at before it is `orphan_age_s` old.
        clock: Takes the place of the journal's, for tests.

    Raises:
        InvalidInputError: There is no journal, so nobody knows jobs over destinations.
        JournalUnavailableError: It cannot be read.
    """
    journal = own_journal(settings, clock or SystemClock())
    if journal is None:
        raise InvalidInputError(
            "recovery over all destinations asks the journal, and LOCKGATE_JOURNAL_URL=none says that there "
            "is none; nothing was done; name a destination, or scan a prefix"
        )
    with journal.reading() as reading:
        now_s = reading.now_s()
        jobs = [
            (JobAt(job.destination, JobId(job.job_id)), _why_left(job, lease, now_s, settings))
            for job, lease in registry.unended(reading)
        ]
        jobs += [(job, None) for job in _left_a_lease(reading, now_s)]
    return _sorted_out(jobs)


def lapsed_at(destination: str, *, settings: Settings | None = None, clock: Clock | None = None) -> Unended:
    """Return a destination's unended jobs, as its folders know them.

    Raises:
        LockgateError: The destination cannot be, or its store said no.
    """
    settings = settings or load_settings()
    store, now = open_store(destination, settings), clock or SystemClock()
    summaries = (
        summarise(store, job, settings=settings, clock=now) for job in list_job_folders(store).others
    )
    place = canonical_url(store)  # as the registry knows it, so that a job which both name is settled once
    return _sorted_out(
        [(JobAt(place, found.job_id), _why_left_at(found)) for found in summaries if found.needs_recovery]
    )


def recover_everything(
    settings: Settings,
    *,
    dry_run: bool = False,
    clock: Clock | None = None,
    progress: Progress = no_progress,
) -> Iterator[RecoveryResult]:
    """Settle every job of the registry that its driver left, wherever it writes.

    Yields:
        A result a job, as it is settled; `detail` says what is not settled yet.

    Raises:
        InvalidInputError: There is no journal, so nobody knows jobs over destinations.
        JournalUnavailableError: It cannot be read; nothing was done.
    """
    jobs = lapsed_jobs(settings, clock).lapsed
    results = settle(jobs, dry_run=dry_run, settings=settings, clock=clock)
    for done, result in enumerate(results, start=1):
        progress("recover", done, len(jobs))
        yield result


def _left_a_lease(reading: Reading, now_s: float) -> Iterator[JobAt]:
    """Yield ended jobs whose lease nobody holds: it was taken as another process ended them, and left."""
    for destination, job_id, lease in registry.leased(reading):
        if state_of(lease, now_s) in TAKES["recover"]:
            job = reading.get(RegisteredJob, destination, job_id)
            if job is not None and job.ended_s is not None:
                yield JobAt(destination, JobId(job_id))


def _why_left(job: RegisteredJob, lease: Lease | None, now_s: float, settings: Settings) -> str | None:
    """Say why a job of the registry is left alone; None if it is not."""
    state = None if lease is None else state_of(lease, now_s)
    if state is LeaseState.RECOVERING:
        return RECOVERED
    if job.phase not in registry.UNDECIDED:
        return None  # from the decision on there is only forward, whoever lives
    if state is None:
        return YOUNG if now_s - job.set_up_s < settings.orphan_age_s else None
    return _LEFT.get(state)


def _why_left_at(job: JobSummary) -> str | None:
    """Say the same of a job of a destination."""
    if job.phase not in UNDECIDED:
        return None
    return {JobLeaseState.LIVE: LIVE, JobLeaseState.PARKED: PARKED}.get(job.lease)


def _sorted_out(jobs: list[tuple[JobAt, str | None]]) -> Unended:
    left: dict[str, int] = {}
    for _, why in jobs:
        if why is not None:
            left[why] = left.get(why, 0) + 1
    return Unended(lapsed=tuple(sorted(job for job, why in jobs if why is None)), left=left)
