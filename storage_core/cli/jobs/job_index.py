"""Read the registry of jobs, an index of the stores, and look up jobs in it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lockgate.storage_core.cli.jobs.job_view import find_job
from lockgate.storage_core.commit.registry import queries as registry
from lockgate.storage_core.commit.registry.rows import Job
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.ids import JobId, is_job_id, job_name, job_resource
from lockgate.storage_core.journal import LeaseState, Reading, Stamp
from lockgate.storage_core.journal.entries.leases import state_of
from lockgate.storage_core.journal.entries.rows import Lease
from lockgate.storage_core.journal.observers.process_reader import configured_reads
from lockgate.storage_core.journal.observers.reading_client import Client
from lockgate.storage_core.settings import load_settings


class IndexedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job in the registry.

    Attributes:
        job: Row of the registry.
        lease: State of its lease; None if it has ended or the journal has no lease of it.
    """

    job: Job
    lease: LeaseState | None


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """The complete registry.

    Attributes:
        journal: URL of the journal without a password.
        stamp: Stamp of the newest entry.
        told_s: Time of the last change to a job; None if there are no jobs.
        jobs: Jobs of all destinations.
    """

    journal: str
    stamp: Stamp
    told_s: float | None
    jobs: tuple[IndexedJob, ...]


def read_index(reading: Reading) -> Index:
    """Return the registry at one state of the journal."""
    now_s = reading.now_s()
    states = {lease.resource: state_of(lease, now_s) for lease in reading.where(Lease, {})}

    def lease_state(job: Job) -> LeaseState | None:
        return states.get(job_resource(job.destination, job.job_id)) if job.ended_s is None else None

    jobs = tuple(IndexedJob(job=job, lease=lease_state(job)) for job in registry.jobs(reading))
    return Index(
        journal=reading.database.name,
        stamp=reading.status().stamp,
        told_s=max((found.job.changed_s for found in jobs), default=None),
        jobs=jobs,
    )


def index_reads(remedy: str, at_least: str = "") -> Client:
    """Return a client for reads of the registry.

    Args:
        remedy: Remedy for the message if there is no journal.
        at_least: Token or stamp of the oldest state to read.

    Raises:
        InvalidInputError: There is no journal, or the token is invalid.
        JournalUnavailableError: The journal cannot be reached.
    """
    reads = configured_reads(load_settings(), at_least=at_least)
    if reads is None:
        raise InvalidInputError(
            "LOCKGATE_JOURNAL_URL=none: without a journal there is no index of jobs of all destinations; "
            f"nothing was done; {remedy}"
        )
    return reads


def locate(words: Sequence[str]) -> tuple[str, JobId]:
    """Return the destination and the id of the job in the arguments `[DEST] JOB`.

    Raises:
        InvalidInputError: The arguments contain no job.
        ObjectNotFoundError: There is no such job, or it is not in the registry.
        ConflictError: Jobs with this id or name exist at several destinations.
    """
    match words:
        case [destination, job]:
            return destination, find_job(destination, job)
        case [job] if not is_destination(job):
            wanted = job if is_job_id(job) else job_name(job)
            with index_reads("give the job's destination as well") as reads:
                found = reads.read(lambda reading: registry.find_job(reading, wanted))
            return found.destination, JobId(found.job_id)
        case [place]:
            raise InvalidInputError(
                f"{place} is a destination: give a job of it as well; `lockgate jobs list {place}` lists them"
            )
        case _:
            raise InvalidInputError(f"give [DEST] JOB, not {len(words)} arguments; nothing was done")


def is_destination(word: str) -> bool:
    """Return whether an argument is a destination: ids and names of jobs contain no slash."""
    return "/" in word or word in {".", ".."}
