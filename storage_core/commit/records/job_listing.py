"""List a destination's jobs without reading them: those that are done, and those that must be read.

An ended job releases its lease last, so a folder with one terminal marker and no lease is done. Thousands
of such folders, such as a stream's batches, cost a few requests in total.
Source: commit protocol, step 9, and "Recovery".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.ids import (
    JobId,
    is_job_id,
)
from lockgate.storage_core.stores import Store

MARKERS: Final = {"COMMIT_SUCCESS": JobPhase.COMMITTED, "COMMIT_FAIL": JobPhase.FAILED}
LAST_NEEDED: Final = "lease.json"
"""Last of the names, in listing order, that show whether a job is done."""


@dataclass(frozen=True)
class JobListing:
    """The jobs of one destination, from one listing.

    Attributes:
        done: Jobs that have ended and are cleaned up, with their terminal phase.
        ended_s: Time of their end by the store's clock, in seconds since the epoch.
        others: Jobs that may have something left to do.
    """

    done: dict[JobId, JobPhase] = field(default_factory=dict)
    ended_s: dict[JobId, float] = field(default_factory=dict)
    others: list[JobId] = field(default_factory=list)

    @property
    def jobs(self) -> Iterator[JobId]:
        """Ids of all jobs."""
        yield from self.done
        yield from self.others


def list_job_folders(store: Store) -> JobListing:
    """List the job folders of a destination."""
    listing = JobListing()
    for job, names in _folders(store):
        ends = [name for name in MARKERS if name in names]
        if len(ends) == 1 and {"job.json", "COMMIT_STARTED"} <= names.keys() and LAST_NEEDED not in names:
            listing.done[job], listing.ended_s[job] = MARKERS[ends[0]], names[ends[0]]
        else:
            listing.others.append(job)
    return listing


def _folders(store: Store) -> Iterator[tuple[JobId, dict[str, float]]]:
    """Yield each job with the names and times in its folder up to `LAST_NEEDED`; the rest may be skipped."""
    after = ""
    names: dict[str, dict[str, float]] = {}
    while page := next(iter(store.pages(layout.JOBS, after=after)), ()):
        for info in page:
            folder, _, name = info.key.removeprefix(layout.JOBS).partition("/")
            names.setdefault(folder, {})[name] = info.modified_s
        last, _, name = page[-1].key.removeprefix(layout.JOBS).partition("/")
        is_whole = name > LAST_NEEDED
        # "0" sorts after "/": the next page starts after the last job's folder.
        after = f"{layout.JOBS}{last}0" if is_whole else page[-1].key
        for folder in [folder for folder in names if is_whole or folder != last]:
            found = names.pop(folder)
            if is_job_id(folder):
                yield JobId(folder), found
    yield from ((JobId(folder), found) for folder, found in names.items() if is_job_id(folder))


def job_ids(store: Store, prefix: str = layout.JOBS, *, after_job: str = "") -> Iterator[JobId]:
    """Yield the ids of a destination's jobs in the store's order, skipping the rest of large folders.

    Args:
        store: Store at the destination.
        prefix: Beginning of the jobs' keys.
        after_job: Id of the job after which to begin; empty: with the first.
    """
    rest: str | None = after_job and f"{layout.JOBS}{after_job}0"
    last = ""
    while rest is not None:
        listed, rest = store.pages(prefix, after=rest), None
        for page in listed:
            found = dict.fromkeys(info.key.removeprefix(layout.JOBS).partition("/")[0] for info in page)
            yield from (JobId(job) for job in found if is_job_id(job) and job != last)
            last = next(reversed(found), last)
            if len(found) == 1:  # a large folder; "0" sorts after "/": the next page starts after it
                rest = f"{layout.JOBS}{last}0"
                break
