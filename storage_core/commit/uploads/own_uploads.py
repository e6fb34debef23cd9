"""List a job's open uploads among those of its destination, for as long as that is the cheapest way.

A store lists uploads by key, and the key does not begin with the job. At a destination where many jobs write,
a job would wait for the uploads of all the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from lockgate.storage_core.commit.records.job_record import JobRecord
from lockgate.storage_core.ids import short_id_in
from lockgate.storage_core.stores import Store, UploadInfo

FOREIGN: Final = 2000
"""Uploads of other jobs that are read in any case: two requests."""
FOREIGN_PER_OWN: Final = 10
"""More of them for each upload of the job, which could be asked for by its id instead, many at a time."""


@dataclass
class OwnUploads:
    """Iterates over a job's open uploads; stops after many of other jobs.

    Attributes:
        store: Store of the destination.
        is_own: Return whether an upload is the job's.
        prefix: Prefix of the keys.
        expected: Number of uploads that the job has, if it is known.
        after: Only keys greater than this one.
        until: Only keys up to this one; empty: all.
        is_complete: Whether the listing was read to its end; known after the iteration.
    """

    store: Store
    is_own: Callable[[UploadInfo], bool]
    prefix: str = ""
    expected: int = 0
    after: str = ""
    until: str = ""
    is_complete: bool = field(init=False, default=False)

    def __iter__(self) -> Iterator[UploadInfo]:
        own = foreign = 0
        for page in self.store.upload_pages(self.prefix, after=self.after):
            for info in page:
                if self.until and info.key > self.until:
                    return
                if self.is_own(info):
                    own += 1
                    yield info
                else:
                    foreign += 1
            if foreign > FOREIGN + FOREIGN_PER_OWN * max(own, self.expected):
                return
        self.is_complete = True


class JobUploads(NamedTuple):
    """Open uploads with a job's short id in their key.

    Attributes:
        found: Key and id of each upload.
        is_complete: Whether they are all: the listing was read to its end.
    """

    found: Sequence[tuple[str, str]]
    is_complete: bool


def uploads_of_job(store: Store, job: JobRecord) -> JobUploads:
    """List the open uploads with a job's short id in their key."""
    listed = OwnUploads(store, lambda info: short_id_in(info.key) == job.short_id)
    found = [(info.key, info.upload_id) for info in listed]
    return JobUploads(found, listed.is_complete)
