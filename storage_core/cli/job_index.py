"""Read the registry of jobs, an index of the stores, and look up jobs in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import msgspec

from lockgate.storage_core.commit.job_view import find_job
from lockgate.storage_core.commit.registry import queries as registry
from lockgate.storage_core.commit.registry.rows import Job
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.ids import JobId, is_job_id, job_name, job_resource
from lockgate.storage_core.journal import LeaseState, Reading, Stamp
from lockgate.storage_core.journal.entries.lease_entries import state_of
from lockgate.storage_core.journal.observers.process_reader import configured_reads
from lockgate.storage_core.journal.observers.reading_client import Client
from lockgate.storage_core.settings import load_settings

PAGE: Final = 1_000
"""Jobs that are read together."""


class IndexedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job in the registry.

    Attributes:
        job: Row of the registry.
        lease: State of its lease; None if it has ended or the journal has no lease of it.
    """

    job: Job
    lease: LeaseState | None


class IndexPage(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the registry, at one state of the journal.

    Attributes:
        journal: URL of the journal without a password.
        stamp: Stamp of the newest entry.
        told_s: Time of the last change to a job; None if there are no jobs.
        jobs: Jobs in the order of their destinations and ids.
    """

    journal: str
    stamp: Stamp
    told_s: float | None
    jobs: tuple[IndexedJob, ...]

    @property
    def next_after(self) -> tuple[str, str] | None:
        """Where the next page begins; None after an empty page."""
        return (self.jobs[-1].job.destination, self.jobs[-1].job.job_id) if self.jobs else None


def read_page(reading: Reading, after: tuple[str, str] | None = None, limit: int = PAGE) -> IndexPage:
    """Return a page of the registry at one state of the journal.

    Args:
        reading: State of the journal.
        after: Destination and id of the last job of the previous page.
        limit: Maximum number of jobs.
    """
    now_s, page = reading.now_s(), registry.jobs(reading, after=after, limit=limit)
    unended = [job for job in page if job.ended_s is None]
    states = {name: state_of(lease, now_s) for name, lease in registry.leases_of(reading, unended).items()}
    return IndexPage(
        journal=reading.database.name,
        stamp=reading.status().stamp,
        told_s=registry.last_change_s(reading),
        jobs=tuple(
            IndexedJob(
                job=job,
                lease=states.get(job_resource(job.destination, job.job_id)) if job.ended_s is None else None,
            )
            for job in page
        ),
    )


def read_pages(reads: Client, after: tuple[str, str] | None, limit: int | None) -> Iterator[IndexPage]:
    """Yield pages up to `limit` jobs, at least one. A later page may be of a later state of the journal."""
    while True:
        wanted = PAGE if limit is None else min(PAGE, limit)
        page = reads.read(partial(read_page, after=after, limit=wanted))
        yield page
        limit = None if limit is None else limit - len(page.jobs)
        after = page.next_after
        if len(page.jobs) < wanted or limit == 0:
            return


def after_job(text: str) -> tuple[str, str] | None:
    """Parse the option `--after`: `DEST#JOB`, as the list prints it; None if it is empty.

    Raises:
        InvalidInputError: It contains no job id.
    """
    destination, separator, job_id = text.rpartition("#")
    if text and not (separator and destination and job_id):
        raise InvalidInputError(f"--after {text}: give DEST#JOB, as the end of the previous page prints it")
    return (destination, job_id) if text else None


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
