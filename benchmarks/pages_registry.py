"""A registry of any number of jobs, written by bulk entries; each job's facts follow from its number."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from typing import Final

from lockgate.storage_core.commit.registry.entries import RecordJob
from lockgate.storage_core.commit.registry.rows import Phase
from lockgate.storage_core.ids import job_resource
from lockgate.storage_core.journal import Journal, Mutation, Refused
from lockgate.storage_core.journal.entries.lease_entries import TakeLease

FEW: Final = 100
DESTINATIONS: Final = 500
GROUP: Final = 2_000
"""Entries of one transaction."""

DAYS: Final = 30
UNENDED: Final = 20
"""Jobs at work, the newest ones: their number does not grow with the registry."""

_PHASES: Final[tuple[Phase, ...]] = ("open", "committing", "aborting")
_DAY_S: Final = 86_400.0
_TODAY_S: Final = time.time() // _DAY_S * _DAY_S


def place_of(number: int) -> str:
    """Return the URL of a destination."""
    return f"s3://lake/table-{number:03d}"


def job_of(number: int, jobs: int | None = None) -> RecordJob:
    """Return the entry of a job: its time is `number` seconds after the first one's, its name follows it.

    Args:
        number: Number of the job, from 0.
        jobs: Number of jobs, of which the last `UNENDED` have not ended; None: this one has.
    """
    set_up_s = float(number)
    # The first ones are of few kinds, so that each page is as full in a registry of `FEW` as in a large one:
    # half of them are at one destination, the others at one each.
    is_first = number < FEW
    place = number % 2 * number if is_first else number % DESTINATIONS
    phase: Phase = "failed" if number % (2 if is_first else 50) == 1 else "committed"
    if jobs is not None and number >= jobs - UNENDED:
        phase = _PHASES[number % len(_PHASES)]
    is_ended = phase in {"committed", "failed"}
    ended_s = _TODAY_S - (number % DAYS) * _DAY_S + number % 1_000
    return RecordJob(
        destination=place_of(place),
        job_id=f"sales-{number:07d}-g1",
        name=f"sales-{number:07d}",
        short_id="abcdefghij",
        committer="magic",
        mode="append",
        phase=phase,
        job_attempt="driver-1",
        set_up_s=set_up_s,
        ended_s=ended_s if is_ended else None,
        decided_s=ended_s - number % 60 if phase != "open" else None,
        tasks=10 if phase == "committed" else None,
        files=100 if phase == "committed" else None,
        rows=1_000_000 if phase == "committed" else None,
        size_bytes=2**30 if phase == "committed" else None,
        dag_id=f"dag-{number % 200}",
        run_id=f"run-{number // 1_000}",
        task_id="write",
        map_index=-1,
        attention="quarantined" if number % (2 if is_first else 40_000) == 1 else None,
    )


def entries(jobs: int) -> Iterator[Mutation]:
    """Yield an entry for each job, and the leases of those that are at work."""
    for number in range(jobs):
        job = job_of(number, jobs)
        yield Mutation(op=job)
        if job.phase == "open":
            resource = job_resource(job.destination, job.job_id)
            yield Mutation(
                op=TakeLease(resource=resource, holder="bench", purpose="write", soft_s=1e9, hard_s=2e9)
            )


def write_registry(journal: Journal, jobs: int) -> None:
    """Write the entries of a registry.

    Raises:
        LockgateError: One was refused.
    """
    rest = entries(jobs)
    while group := list(islice(rest, GROUP)):
        for outcome in journal.write(group):
            if isinstance(outcome, Refused):
                raise outcome.error
