"""Query jobs and their leases. The registry is an index over the stores.

Entries keep it up to date; `lockgate jobs rescan` rebuilds it from a destination.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lockgate.storage_core.commit.registry.rows import Destination, Job
from lockgate.storage_core.errors import ConflictError, ObjectNotFoundError
from lockgate.storage_core.ids import job_of_resource, job_resource
from lockgate.storage_core.journal.entries.rows import Lease
from lockgate.storage_core.journal.read.snapshot_read import Reading

UNDECIDED: Final = frozenset({"open"})
UNENDED: Final = frozenset({"open", "committing", "aborting"})


def destinations(reading: Reading) -> list[str]:
    """Return the URLs of all known destinations."""
    return [destination.url for destination in reading.where(Destination, {})]


def jobs(reading: Reading, destination: str | None = None) -> list[Job]:
    """Return the jobs of one destination, or of all, by destination and id."""
    return list(reading.where(Job, {} if destination is None else {"destination": destination}))


def unended(reading: Reading) -> Iterator[tuple[Job, Lease | None]]:
    """Yield each job without a terminal marker and its lease, for recovery."""
    for phase in sorted(UNENDED):
        for job in reading.where(Job, {"phase": phase}):
            yield job, reading.get(Lease, job_resource(job.destination, job.job_id))


def leased(reading: Reading) -> Iterator[tuple[str, str, Lease]]:
    """Yield the destination, id and lease of each job with a lease, including ended jobs."""
    for lease in reading.where(Lease, {}):
        job = job_of_resource(lease.resource)
        if job is not None:
            yield *job, lease


def find_job(reading: Reading, text: str) -> Job:
    """Return the job with an id, or the newest generation of a name, at any destination.

    Raises:
        ObjectNotFoundError: The registry has no such job.
        ConflictError: Several destinations have such a job; the message names them.
    """
    found = list(reading.where(Job, {"job_id": text}))
    if not found:
        named = sorted(reading.where(Job, {"name": text}), key=_generation)
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
