"""Query jobs and their leases. The registry is an index over the stores.

Entries keep it up to date; `lockgate jobs rescan` rebuilds it from a destination.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from lockgate.storage_core.commit.registry.job_lists import named_exactly
from lockgate.storage_core.commit.registry.rows import RESTS, Destination, Job
from lockgate.storage_core.errors import ConflictError, ObjectNotFoundError
from lockgate.storage_core.ids import job_of_resource, job_resource
from lockgate.storage_core.journal.entries.lease_entries import Lease
from lockgate.storage_core.journal.leases.lease import overdue_leases
from lockgate.storage_core.journal.read.snapshot_read import Reading
from lockgate.storage_core.stores.protocol import in_pages

PAGE: Final = 1_000
"""Jobs whose leases are read together."""

UNDECIDED: Final = frozenset({"open"})
UNENDED: Final = frozenset({"open", "committing", "aborting"})


def destinations(reading: Reading, *, changed_since_s: float = 0.0) -> list[str]:
    """Return the URLs of the destinations at which a job has changed since a time; by default of all."""
    found = reading.where(Destination, {})
    return [destination.url for destination in found if destination.last_s >= changed_since_s]


def jobs(
    reading: Reading,
    destination: str | None = None,
    *,
    after: tuple[str, str] | None = None,
    limit: int | None = None,
) -> list[Job]:
    """Return the jobs of one destination, or of all, by destination and id.

    Args:
        reading: State of the journal.
        destination: URL of the destination; None for all.
        after: Destination and id of the last job of the previous page.
        limit: Maximum number of jobs.
    """
    columns = {} if destination is None else {"destination": destination}
    return list(reading.where(Job, columns, after=after, limit=limit))


def last_change_s(reading: Reading) -> float | None:
    """Return when an entry about a job was last written; None if there are no destinations."""
    newest_s: float | None = reading.greatest(Destination, "last_s")
    return newest_s


def unended(reading: Reading) -> Iterator[tuple[Job, Lease | None]]:
    """Yield each job without a terminal marker and its lease, for recovery."""
    for phase in sorted(UNENDED):
        for page in in_pages(reading.where(Job, {"phase": phase}), PAGE):
            leases = leases_of(reading, page)
            for job in page:
                yield job, leases.get(job_resource(job.destination, job.job_id))


def leases_of(reading: Reading, page: Sequence[Job]) -> dict[str, Lease]:
    """Return the leases of a page of jobs, by resource, in one statement."""
    keys = [(job_resource(job.destination, job.job_id),) for job in page]
    return {lease.resource: lease for lease in reading.find(Lease, keys)} if keys else {}


def leased(reading: Reading) -> Iterator[tuple[str, str]]:
    """Yield the destination and id of each job with a lease, known or not. It reads all leases, in pages."""
    after: tuple[str] | None = None
    while page := reading.where(Lease, {}, after=after, limit=PAGE):
        yield from (job for lease in page if (job := job_of_resource(lease.resource)) is not None)
        after = (page[-1].resource,)


def ended_with_lease(reading: Reading, now_s: float, within_s: float) -> Iterator[Job]:
    """Yield ended jobs with an overdue lease, which was taken while another process ended the job.

    Args:
        reading: State of the journal.
        now_s: Time of the database's clock.
        within_s: Holders that have renewed in this time are left out: see `overdue_leases`.
    """
    leases = overdue_leases(reading, now_s, within_s)
    named = (job for lease in leases if (job := job_of_resource(lease.resource)) is not None)
    for page in in_pages(named, PAGE):
        yield from (job for job in reading.find(Job, page) if job.ended_s is not None)


def ended_with_rest(reading: Reading) -> Iterator[Job]:
    """Yield ended jobs that could not delete all that they had to."""
    for rest in RESTS:
        yield from reading.where(Job, {"attention": rest})


def find_job(reading: Reading, text: str) -> Job:
    """Return the job with an id, or the newest generation of a name, at any destination.

    Raises:
        ObjectNotFoundError: The registry has no such job.
        ConflictError: Several destinations have such a job; the message names them.
    """
    found = list(reading.where(Job, {"job_id": text}))
    if not found:
        named = sorted(named_exactly(reading, text), key=_generation)
        found = list({job.destination: job for job in named}.values())  # the newest of each destination
    if not found:
        raise ObjectNotFoundError(
            f"the journal knows no job {text[:140]!r}; name its destination, too, or rebuild the index: "
            "`lockgate jobs rescan DESTINATION`"
        )
    if len(found) > 1:
        places = ", ".join(sorted(job.destination for job in found))
        raise ConflictError(f"{text} is a job at {places}: name one of these destinations")
    return found[0]


def _generation(job: Job) -> int:
    return int(job.job_id.rpartition("-g")[2])
