"""Rebuild the registry of jobs from the job folders of a destination; the registry is only an index of them.

A rebuild does not change the store. It may run while jobs run, and may be repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Final, Literal

import msgspec

from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.commit.decide.task_selection import newest_job_attempt
from lockgate.storage_core.commit.leases.job_lease import own_journal
from lockgate.storage_core.commit.leases.registration import (
    PHASES,
    JobFacts,
    end_of_lease,
    forget_attempts,
    record_job,
    rest_of,
)
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.job_listing import JobListing, list_job_folders
from lockgate.storage_core.commit.records.phase import TERMINAL, JobPhase
from lockgate.storage_core.commit.registry.entries import KEPT, ForgetJob, RecordJob
from lockgate.storage_core.commit.registry.queries import UNENDED, jobs, leased
from lockgate.storage_core.commit.registry.rows import Job, Phase
from lockgate.storage_core.commit.setup.capabilities import with_recorded_capabilities
from lockgate.storage_core.concurrency import Progress, in_parallel, no_progress
from lockgate.storage_core.errors import InvalidInputError, LockgateError, ObjectNotFoundError
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.ids import JobId
from lockgate.storage_core.journal import Journal, Mutation, Refused
from lockgate.storage_core.journal.entries.op import Op
from lockgate.storage_core.settings import Settings, load_settings
from lockgate.storage_core.stores import Store, open_store
from lockgate.storage_core.stores.open_store import canonical_url
from lockgate.storage_core.stores.protocol import in_pages

BATCH: Final = 100
"""Number of jobs that are written in one transaction."""


class RescanResult(msgspec.Struct, frozen=True, kw_only=True):
    """A job whose row in the registry differs from its folder, or an ended job that has a lease.

    Attributes:
        was: Phase in the registry; None if the job was not registered.
        now: Phase in the store; None if the folder is gone or cannot be read.
        detail: Error or note, for people.
    """

    job_id: JobId
    action: Literal["record", "forget", "drop its lease", "leave alone"]
    was: Phase | None
    now: Phase | None
    detail: str = ""


def rescan(
    destination: str,
    *,
    dry_run: bool = False,
    settings: Settings | None = None,
    clock: Clock | None = None,
    progress: Progress = no_progress,
) -> Iterator[RescanResult]:
    """Update the registry from the job folders of a destination.

    Args:
        destination: `s3://bucket/prefix`, `file:///dir` or a path.
        dry_run: Yield the differences, and write nothing.

    Yields:
        A result for each job that differs, after the registry was updated.

    Raises:
        InvalidInputError: The destination is not valid, or there is no journal.
        JournalUnavailableError: The journal cannot be reached; earlier updates are kept.
    """
    settings = settings or load_settings()
    clock = clock or SystemClock()
    journal = own_journal(settings, clock)
    if journal is None:
        raise InvalidInputError(
            "LOCKGATE_JOURNAL_URL=none: there is no journal, so there is no registry of jobs to rebuild; "
            f"nothing was done; `lockgate jobs list {destination}` reads the store"
        )
    with step("rescan"):
        store = with_recorded_capabilities(open_store(destination, settings), settings, clock)
        # Read the registry before the listing, so that a job that is set up meanwhile is not forgotten.
        with journal.reading() as reading:
            url = canonical_url(store)
            registered = {JobId(job.job_id): job for job in jobs(reading, url)}
            leases = {JobId(job) for destination, job in leased(reading) if destination == url}
        listing = list_job_folders(store)
        differences = _differences(
            store, listing, registered, leases, parallelism=settings.near_calls, progress=progress
        )
        for batch in in_pages(differences, BATCH):
            errors = {} if dry_run else _write(journal, store, batch)
            for result, _ in batch:
                yield msgspec.structs.replace(result, detail=errors.get(result.job_id, result.detail))


_Difference = tuple[RescanResult, Sequence[Op]]
"""A result, and the entries to write for it."""


def _differences(
    store: Store,
    listing: JobListing,
    registered: Mapping[JobId, Job],
    leases: Set[JobId],
    *,
    parallelism: int,
    progress: Progress,
) -> Iterator[_Difference]:
    def is_current(job: JobId) -> bool:
        row, done = registered.get(job), listing.done.get(job)
        if row is None or done is None or job in leases:
            return False
        return row.phase == PHASES[done]

    def compare(job: JobId) -> _Difference | None:
        return _compare(JobFolder(store, job), registered.get(job), has_lease=job in leases)

    uncertain = [job for job in listing.jobs if not is_current(job)]
    for done, difference in enumerate(in_parallel(compare, uncertain, parallelism), start=1):
        progress("rescan", done, len(uncertain))
        if difference is not None:
            yield difference
    for job in sorted((registered.keys() | leases) - set(listing.jobs)):
        yield _gone(job, registered.get(job))


def _compare(folder: JobFolder, row: Job | None, *, has_lease: bool) -> _Difference | None:
    job_id, was = folder.job_id, None if row is None else row.phase
    try:
        job = folder.job()
        phase = folder.phase()
        attempt = (newest_job_attempt(folder) or "") if phase not in TERMINAL and row is None else ""
        success, failure = folder.ended()
        facts = JobFacts(
            decision=folder.decision(),
            ended=success or failure,
            rest=_rest(folder, phase),
        )
    except ObjectNotFoundError:
        return None if row is None and not has_lease else _gone(job_id, row)
    except LockgateError as error:
        return RescanResult(job_id=job_id, action="leave alone", was=was, now=None, detail=str(error)), ()
    # Only a driver releases what the one before it left. The job may have another driver since the listing.
    entry = record_job(folder, job, phase, attempt, facts)
    if row is not None and _is_equal(entry, row):
        if phase not in TERMINAL or not has_lease:
            return None
        return RescanResult(job_id=job_id, action="drop its lease", was=was, now=entry.phase), ()
    result = RescanResult(job_id=job_id, action="record", was=was, now=entry.phase)
    if row is not None and _is_newer(row, entry):
        return result, (ForgetJob(destination=entry.destination, job_id=job_id), entry)
    return result, (entry,)


def _rest(folder: JobFolder, phase: JobPhase) -> str | None:
    """Return what an ended job could not delete, and has not deleted since: its clean-up is not over."""
    report = folder.report() if phase in TERMINAL and folder.has_lease() else None
    return None if report is None else rest_of(phase, report.counts)


def _is_newer(row: Job, entry: RecordJob) -> bool:
    """Return whether the registry would ignore the entry because its row is newer."""
    return row.set_up_s > entry.set_up_s or (row.ended_s is not None and entry.phase in UNENDED)


def _gone(job_id: JobId, row: Job | None) -> _Difference:
    if row is None:
        return RescanResult(job_id=job_id, action="drop its lease", was=None, now=None), ()
    result = RescanResult(job_id=job_id, action="forget", was=row.phase, now=None)
    return result, (ForgetJob(destination=row.destination, job_id=job_id),)


def _is_equal(entry: RecordJob, row: Job) -> bool:
    fields = msgspec.structs.asdict(entry)
    del fields["job_attempt"]  # the registry may have a newer one than the store
    del fields["stamp"]  # of the entry, not of the job
    del fields["ended_s"]  # the first registration's counts
    return all(
        getattr(row, name) == value or (value is None and name in KEPT) for name, value in fields.items()
    )


def _write(journal: Journal, store: Store, batch: Sequence[_Difference]) -> dict[JobId, str]:
    """Write a batch of entries, and end the leases of ended jobs; return the errors of refused entries."""
    mutations: list[Mutation] = []
    owners: list[JobId] = []
    for result, entries in batch:
        for entry in entries:
            if isinstance(entry, ForgetJob):
                forget_attempts(journal, entry)
        of_job = [Mutation(op=entry) for entry in entries]
        if result.action in {"forget", "drop its lease"} or result.now in {"committed", "failed"}:
            of_job += end_of_lease(journal, JobFolder(store, result.job_id))
        mutations += of_job
        owners += [result.job_id] * len(of_job)
    outcomes = journal.write(mutations) if mutations else []
    return {
        job_id: str(outcome.error)
        for job_id, outcome in zip(owners, outcomes, strict=True)
        if isinstance(outcome, Refused)
    }
