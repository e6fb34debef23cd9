"""The registry of jobs made anew from a destination: the stores know, the journal is an index over them.

It decides nothing and changes nothing in the store. Beside running jobs it is harmless; so is repeating it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Final, Literal

import msgspec

from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.commit.decide.task_selection import newest_job_attempt
from lockgate.storage_core.commit.destination.location import canonical_url, symlinked_url
from lockgate.storage_core.commit.leases.job_journal import own_journal
from lockgate.storage_core.commit.leases.registry import PHASES, end_of_leases, record_job
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.job_listing import JobListing, list_job_folders
from lockgate.storage_core.commit.records.phase import TERMINAL, JobPhase
from lockgate.storage_core.commit.setup.capabilities import with_recorded_capabilities
from lockgate.storage_core.concurrency import Progress, in_parallel, no_progress
from lockgate.storage_core.errors import InvalidInputError, LockgateError, ObjectNotFoundError
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.ids import JobId
from lockgate.storage_core.journal import Journal, Mutation, Refused
from lockgate.storage_core.journal.entries import Op
from lockgate.storage_core.journal.entries.jobs import ForgetJob, RecordJob
from lockgate.storage_core.journal.entries.rows import Job, Phase
from lockgate.storage_core.journal.queries.jobs import UNENDED, jobs, leased
from lockgate.storage_core.settings import Settings, load_settings
from lockgate.storage_core.stores import Store, open_store

BATCH: Final = 100
"""Jobs whose entries share a transaction."""


class Rescanned(msgspec.Struct, frozen=True, kw_only=True):
    """A job of which the registry did not know what its store says, or which is over and has a lease.

    Attributes:
        was: Its phase in the registry, None if that did not know the job.
        now: Its phase in the store, None if its folder is gone or cannot be read.
        detail: What could not be read or written, for people.
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
) -> Iterator[Rescanned]:
    """Bring the registry to what a destination's job folders say.

    Args:
        destination: `s3://bucket/prefix`, `file:///dir` or a path.
        dry_run: Say what differs and write nothing.
        settings: From the environment by default.
        clock: The machine's by default.
        progress: Hears how many jobs were compared.

    Yields:
        A result a job that differs, when the registry was told.

    Raises:
        InvalidInputError: The destination cannot be, or there is no journal.
        JournalUnavailableError: It cannot be reached; what was told before stands.
    """
    settings = settings or load_settings()
    clock = clock or SystemClock()
    journal = own_journal(settings, clock)
    if journal is None:
        raise InvalidInputError(
            "LOCKGATE_JOURNAL_URL=none says that there is no journal, so no index of jobs to be made anew; "
            f"nothing was done; `lockgate jobs list {destination}` reads the store itself"
        )
    with step("rescan"):
        store = with_recorded_capabilities(open_store(destination, settings), settings, clock)
        # The registry first: a job that is set up meanwhile is found by the listing, and never forgotten.
        with journal.reading() as reading:
            place, link = canonical_url(store), symlinked_url(store)
            known = {JobId(job.job_id): job for job in jobs(reading, place)}
            held = {JobId(job) for destination, job, _ in leased(reading) if destination == place}
            linked = [] if link is None else jobs(reading, link)
        listing = list_job_folders(store)
        found = chain(
            _differing(store, listing, _Known(known, held), settings.parallelism, progress),
            _linked(listing, linked),
        )
        while batch := list(islice(found, BATCH)):
            errors = {} if dry_run else _tell(journal, store, batch)
            for result, _ in batch:
                yield msgspec.structs.replace(result, detail=errors.get(result.job_id, result.detail))


_Found = tuple[Rescanned, Sequence[Op]]
"""What is to be told of a job, and how."""


@dataclass(frozen=True)
class _Known:
    """What the journal knew of a destination before its folders were listed.

    Attributes:
        jobs: As the registry knows them.
        held: Those that have a lease.
    """

    jobs: dict[JobId, Job]
    held: set[JobId]

    def is_told(self, job: JobId, done: JobPhase | None) -> bool:
        """Tell whether nothing is to be said of a job that is done, as the listing alone shows it."""
        told = self.jobs.get(job)
        return told is not None and done is not None and told.phase == PHASES[done] and job not in self.held


def _differing(
    store: Store, listing: JobListing, known: _Known, parallelism: int, progress: Progress
) -> Iterator[_Found]:
    unsure = [job for job in listing.jobs if not known.is_told(job, listing.done.get(job))]
    gone = [_gone(job, known.jobs.get(job)) for job in (known.jobs.keys() | known.held) - set(listing.jobs)]
    compare = partial(_compare, store, known)
    for done, found in enumerate(in_parallel(compare, unsure, parallelism), start=1):
        progress("rescan", done, len(unsure))
        if found is not None:
            yield found
    yield from sorted(gone, key=lambda found: found[0].job_id)


def _linked(listing: JobListing, linked: Sequence[Job]) -> Iterator[_Found]:
    """Yield the jobs that are known by the name of a link, and that nobody drives by it any more."""
    others = set(listing.others)
    for job in linked:
        job_id = JobId(job.job_id)
        if job_id not in others:
            detail = f"it was known by the name of a link: {job.destination}"
            yield Rescanned(job_id=job_id, action="forget", was=job.phase, now=None, detail=detail), ()


def _compare(store: Store, known: _Known, job_id: JobId) -> _Found | None:
    folder, told = JobFolder(store, job_id), known.jobs.get(job_id)
    try:
        job = folder.job()
        phase = folder.phase()
        attempt = (newest_job_attempt(folder) or "") if phase not in TERMINAL and told is None else ""
    except ObjectNotFoundError:
        return None if told is None and job_id not in known.held else _gone(job_id, told)
    except LockgateError as error:
        was = None if told is None else told.phase
        return Rescanned(job_id=job_id, action="leave alone", was=was, now=None, detail=str(error)), ()
    entry = record_job(folder, job, phase, attempt)
    if told is not None and _says_the_same(entry, told):
        if phase not in TERMINAL or job_id not in known.held:
            return None
        return Rescanned(job_id=job_id, action="drop its lease", was=told.phase, now=entry.phase), ()
    result = Rescanned(
        job_id=job_id, action="record", was=None if told is None else told.phase, now=entry.phase
    )
    if told is not None and _hides(told, entry):
        return result, (ForgetJob(destination=entry.destination, job_id=job_id), entry)
    return result, (entry,)


def _hides(told: Job, entry: RecordJob) -> bool:
    """Tell whether the registry would take what the store says for a message that comes late."""
    return told.set_up_s > entry.set_up_s or (told.ended_s is not None and entry.phase in UNENDED)


def _gone(job_id: JobId, told: Job | None) -> _Found:
    if told is None:
        return Rescanned(job_id=job_id, action="drop its lease", was=None, now=None), ()
    result = Rescanned(job_id=job_id, action="forget", was=told.phase, now=None)
    return result, (ForgetJob(destination=told.destination, job_id=job_id),)


def _says_the_same(entry: RecordJob, told: Job) -> bool:
    wanted = msgspec.structs.asdict(entry)
    del wanted["job_attempt"]  # the registry may know more of it than the store
    return all(getattr(told, name) == value for name, value in wanted.items())


def _tell(journal: Journal, store: Store, batch: Sequence[_Found]) -> dict[JobId, str]:
    """Write what a batch asks for, and end the leases of jobs that are over; returns what was refused."""
    mutations: list[Mutation] = []
    owners: list[JobId] = []
    for result, entries in batch:
        told = [Mutation(op=entry) for entry in entries]
        if result.action in {"forget", "drop its lease"} or result.now in {"committed", "failed"}:
            told += end_of_leases(journal, JobFolder(store, result.job_id))
        mutations += told
        owners += [result.job_id] * len(told)
    outcomes = journal.write(mutations) if mutations else []
    return {
        job_id: str(outcome.error)
        for job_id, outcome in zip(owners, outcomes, strict=True)
        if isinstance(outcome, Refused)
    }
