"""The registry of jobs as the command line shows it, and jobs found through it: an index over the stores."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lockgate.storage_core.cli.jobs.job_view import find_job
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.ids import JobId, is_job_id, job_name
from lockgate.storage_core.journal import LeaseState, Reading, Stamp
from lockgate.storage_core.journal.entries.leases import state_of
from lockgate.storage_core.journal.entries.rows import Job, Lease
from lockgate.storage_core.journal.observers import Client, configured_reads
from lockgate.storage_core.journal.queries import jobs as registry
from lockgate.storage_core.settings import load_settings


class IndexedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job as the registry knows it.

    Attributes:
        lease: None once it has ended, and where the journal has no lease of it.
    """

    job: Job
    lease: LeaseState | None


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """All that the registry knows.

    Attributes:
        journal: Where it is, without a password.
        stamp: Of the newest entry in it.
        told_s: When it last heard of a job; None if it never did.
        jobs: Of all destinations.
    """

    journal: str
    stamp: Stamp
    told_s: float | None
    jobs: tuple[IndexedJob, ...]


def read_index(reading: Reading) -> Index:
    """Return the registry in one state of the journal."""
    now_s = reading.now_s()
    states = {lease.resource: state_of(lease, now_s) for lease in reading.where(Lease, {})}
    jobs = tuple(
        IndexedJob(job=job, lease=None if job.ended_s is not None else states.get(_resource(job)))
        for job in registry.jobs(reading)
    )
    return Index(
        journal=reading.database.name,
        stamp=reading.status().stamp,
        told_s=max((found.job.changed_s for found in jobs), default=None),
        jobs=jobs,
    )


def index_reads(instead: str, at_least: str = "") -> Client:
    """Return a client of the journal whose registry is asked.

    Args:
        instead: What to do where there is none.
        at_least: A token, or a stamp: an older state is not read.

    Raises:
        InvalidInputError: There is none, or the token cannot be.
        JournalUnavailableError: It cannot be reached.
    """
    reads = configured_reads(load_settings(), at_least=at_least)
    if reads is None:
        raise InvalidInputError(
            "LOCKGATE_JOURNAL_URL=none says that there is no journal, so nothing knows jobs over all "
            f"destinations; nothing was done; {instead}"
        )
    return reads


def locate(words: Sequence[str]) -> tuple[str, JobId]:
    """Return the destination and the id of the job that `[DEST] JOB` names.

    Raises:
        InvalidInputError: It names none.
        ObjectNotFoundError: There is no such job, or the registry knows none.
        ConflictError: Jobs of this id write several destinations.
    """
    match words:
        case [destination, job]:
            return destination, find_job(destination, job)
        case [job] if not is_destination(job):
            wanted = job if is_job_id(job) else job_name(job)
            with index_reads("name the job's destination, too") as reads:
                found = reads.read(lambda reading: registry.find_job(reading, wanted))
            return found.destination, JobId(found.job_id)
        case [place]:
            raise InvalidInputError(
                f"{place} is a destination: name a job of it, too; `lockgate jobs list {place}` shows them"
            )
        case _:
            raise InvalidInputError(f"give [DEST] JOB, not {len(words)} words; nothing was done")


def is_destination(word: str) -> bool:
    """Tell whether a word is a destination and no job: ids and names of jobs hold no slash."""
    return "/" in word or word in {".", ".."}


def _resource(job: Job) -> str:
    return registry.job_resource(job.destination, job.job_id)
