"""The roll of a destination's jobs, taken from a listing alone: which are done, and which have to be read.

An ended job gives its lease up last, so a folder with one terminal marker and without a lease has nothing
left to do. Thousands of such folders, of a stream's batches, cost a few requests, not some for each.
Source: commit protocol, step 9, and "Recovery".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.ids import JobId, is_job_id
from lockgate.storage_core.stores import Store

MARKERS: Final = {"COMMIT_SUCCESS": JobPhase.COMMITTED, "COMMIT_FAIL": JobPhase.FAILED}
TELLING: Final = "lease.json"
"""No name in a job's folder that sorts after this one says whether the job is done."""


@dataclass(frozen=True)
class Roll:
    """The jobs of one destination.

    Attributes:
        done: Jobs that have ended and are cleaned up, with how they ended.
        others: Jobs that may have something left to do.
    """

    done: dict[JobId, JobPhase] = field(default_factory=dict)
    others: list[JobId] = field(default_factory=list)

    @property
    def jobs(self) -> Iterator[JobId]:
        """All of them."""
        yield from self.done
        yield from self.others


def call_roll(store: Store) -> Roll:
    """Take the roll of a destination."""
    roll = Roll()
    for job, names in _folders(store):
        ends = [phase for name, phase in MARKERS.items() if name in names]
        if len(ends) == 1 and {"job.json", "COMMIT_STARTED"} <= names and TELLING not in names:
            roll.done[job] = ends[0]
        else:
            roll.others.append(job)
    return roll


def _folders(store: Store) -> Iterator[tuple[JobId, set[str]]]:
    """Yield each job with the names in its folder that tell; the rest of a large folder is skipped."""
    after = ""
    names: dict[str, set[str]] = {}
    while page := next(iter(store.pages(layout.JOBS, after=after)), ()):
        for info in page:
            folder, _, name = info.key.removeprefix(layout.JOBS).partition("/")
            names.setdefault(folder, set()).add(name)
        last, _, name = page[-1].key.removeprefix(layout.JOBS).partition("/")
        is_whole = name > TELLING
        # "0" follows "/": the next page starts behind the rest of the last job's folder.
        after = f"{layout.JOBS}{last}0" if is_whole else page[-1].key
        for folder in [folder for folder in names if is_whole or folder != last]:
            found = names.pop(folder)
            if is_job_id(folder):
                yield JobId(folder), found
    yield from ((JobId(folder), found) for folder, found in names.items() if is_job_id(folder))
