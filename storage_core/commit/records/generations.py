"""Find the newest generation of a job's name without a list of all, also after its folder was deleted.

The end of a generation is recorded before the next one begins, and before its folder is deleted. The record
of the newest one is the first of its name in a listing.
Source: commit protocol, "Set-up".
"""

from __future__ import annotations

from typing import NamedTuple

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.codec import Record
from lockgate.storage_core.commit.records.create_if_absent import claim, find
from lockgate.storage_core.commit.records.job_record import JobRecord
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.commit.records.report import Ended
from lockgate.storage_core.ids import JobId, JobName, job_id, split_job_id
from lockgate.storage_core.stores import Store


class EndedGeneration(Record, frozen=True, tag="ended-generation"):
    """`names/<name>/<number>.json`: the end of one generation of a name.

    Attributes:
        job: Its `job.json`; None if that was deleted by hand.
        ended: Its terminal marker; None of a job in quarantine, or without `job.json`.
    """

    job_id: JobId
    job: JobRecord | None
    ended: Ended | None

    @property
    def phase(self) -> JobPhase:
        """Terminal phase of the job; failed if it can never commit."""
        is_committed = self.ended is not None and self.ended.ended == "committed"
        return JobPhase.COMMITTED if is_committed else JobPhase.FAILED


class Newest(NamedTuple):
    """The first generation of a name whose end is not recorded.

    Attributes:
        has_begun: Whether it has a folder.
        seen_s: Wall-clock and monotonic time before the look.
    """

    generation: int
    has_begun: bool
    seen_s: tuple[float, float]


def newest_generation(store: Store, name: JobName, clock: Clock) -> Newest:
    """Return the first generation of a name whose end is not recorded."""
    # The folder is listed before the records: a folder that a sweep has deleted has its record by then.
    seen_s = clock.now_s(), clock.monotonic_s()
    number, has_begun = 1, _has_folder(store, name, 1)
    while (ended := _newest_ended(store, name)) >= number:
        number, has_begun = ended + 1, _has_folder(store, name, ended + 1)
        if has_begun:
            break
    return Newest(number, has_begun, seen_s)


def record_end(store: Store, record: EndedGeneration) -> EndedGeneration:
    """Record the end of a generation, unless it is recorded; return the stored record."""
    return claim(store, layout.ended_generation(record.job_id), record)


def is_over(store: Store, job: JobId) -> bool:
    """Return whether the end of a job's generation, or of a later one, is recorded."""
    name, generation = split_job_id(job)
    return _newest_ended(store, name) >= generation


def recorded_end(store: Store, job: JobId) -> EndedGeneration | None:
    """Return the recorded end of a generation; None if there is none, or a sweep has deleted it.

    A sweep deletes those before a generation that has replaced their files, and those of failed generations.
    """
    return find(store, EndedGeneration, layout.ended_generation(job))


def _has_folder(store: Store, name: JobName, generation: int) -> bool:
    return any(store.pages(layout.job_folder(job_id(name, generation)), page_size=1))


def _newest_ended(store: Store, name: JobName) -> int:
    first = next(iter(store.pages(layout.ended_generations(name), page_size=1)), ())
    return max((layout.parse_ended_generation(info.key) for info in first), default=0)
