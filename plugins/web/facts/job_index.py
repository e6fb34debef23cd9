"""Lists of jobs from the registry, with what each job needs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from lockgate.plugins.web.models.jobs import JobCounts, JobRow, Needs, Origin
from lockgate.plugins.web.models.model import Page
from lockgate.plugins.web.paging import cursor, key_after
from lockgate.plugins.web.request_reads import Reads
from lockgate.storage_core.commit.registry import job_lists, queries
from lockgate.storage_core.commit.registry.rows import Job, Phase
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.ids import job_resource
from lockgate.storage_core.journal import LeaseState, Reading
from lockgate.storage_core.journal.entries.lease_entries import state_of
from lockgate.storage_core.stores.open_store import parse_destination

Sort: TypeAlias = Literal["newest", "oldest", "name"]

SCANNED: Final = 2_000
"""Jobs that one page reads at most, so that a rare filter costs no more than a common one."""

CHUNK: Final = 200
"""Jobs that are read together if the first ones do not fill the page."""

COUNTED_NEEDS: Final = 100
COUNTED_UNENDED: Final = 1_000
GREATEST_INDEX: Final = 2**31

NO_JOURNAL: Final = (
    "This server has no journal (LOCKGATE_JOURNAL_URL=none), so there is no index of jobs: open a job by its "
    "destination and id; `lockgate jobs list DESTINATION` lists the jobs of a destination."
)

_ENDED: Final[frozenset[Phase]] = frozenset({"committed", "failed"})
_ALL: Final = queries.UNENDED | _ENDED
_UNKEPT: Final = re.compile("[\0\ud800-\udfff]")


@dataclass(frozen=True, kw_only=True)
class JobFilter:
    """Which jobs to list.

    Attributes:
        search: Beginning of the jobs' names. Such a list is ordered by name.
    """

    needs: Needs | None = None
    phase: Phase | None = None
    destination: str | None = None
    search: str = ""
    sort: Sort = "newest"

    @property
    def is_by_name(self) -> bool:
        """Whether the list is ordered by name."""
        return bool(self.search) or self.sort == "name"

    @property
    def list_name(self) -> str:
        """Name of the list in its cursors."""
        return "jobs-name" if self.is_by_name else f"jobs-{self.sort}"

    @property
    def phases(self) -> frozenset[str]:
        """The registered phases that such jobs may have."""
        wanted = {None: _ALL, "nothing": _ENDED, "wait": queries.UNENDED, "you": queries.UNENDED}[self.needs]
        return wanted if self.phase is None else wanted & {self.phase}


def job_page(reads: Reads, filters: JobFilter, after: str | None, limit: int) -> Page[JobRow]:
    """Return a page of the registry's jobs.

    It reads at most `SCANNED` jobs, so it may have fewer than `limit` items although others follow.

    Args:
        reads: Reads of the application.
        filters: Which jobs to list, and their order.
        after: `next_after` of the previous page.
        limit: Maximum number of jobs.

    Raises:
        InvalidInputError: The cursor is of another list, or a filter is invalid.
        JournalUnavailableError: The journal cannot be reached.
    """
    place = filters.destination and parse_destination(filters.destination)
    kinds = (str, str, str) if filters.is_by_name else (float, str, str)
    key: Any = key_after(filters.list_name, after, *kinds)
    refuse_unkept(filters.search, place, *(key or ()))
    if not reads.has_journal:
        return Page(items=(), unknown=(NO_JOURNAL,))

    attention = filters.needs == "you" and filters.phase in {None, "failed"}

    def of_names(reading: Reading, key: Any, number: int) -> list[Job]:
        return job_lists.by_name(
            reading,
            sorted(filters.phases),
            filters.search,
            destination=place,
            attention=attention,
            after=key and job_lists.NamedPlace(*key),
            limit=number,
        )

    def of_times(reading: Reading, key: Any, number: int) -> list[Job]:
        return job_lists.by_time(
            reading,
            sorted(filters.phases),
            destination=place,
            attention=attention,
            after=key and job_lists.Place(*key),
            newest_first=filters.sort == "newest",
            limit=number,
        )

    def is_wanted(job: Job, lease: LeaseState | None) -> bool:
        is_phase = filters.phase in {None, job.phase}
        is_place = place is None or job.destination == place
        return is_phase and is_place and filters.needs in {None, needs_of(job, lease)[0]}

    source = of_names if filters.is_by_name else of_times
    key_of = job_lists.named_place_of if filters.is_by_name else job_lists.place_of
    items, last = reads.journal(
        lambda reading: _scan(reading, source, key_of, is_wanted, key=key, limit=limit)
    )
    return Page(items=tuple(items), next_after=None if last is None else cursor(filters.list_name, last))


def run_page(reads: Reads, task: job_lists.Task, after: str | None, limit: int) -> Page[JobRow]:
    """Return a page of the jobs that a DAG run or a task set up, by task, destination and id.

    Raises:
        InvalidInputError: The cursor is of another list.
        JournalUnavailableError: The journal cannot be reached.
    """
    key = key_after("runs", after, str, int, str, str)
    refuse_unkept(*task, *(key or ()))
    if not reads.has_journal:
        return Page(items=(), unknown=(NO_JOURNAL,))
    if key is not None and isinstance(key[1], int):
        key = (key[0], max(-1, min(key[1], GREATEST_INDEX)), *key[2:])

    def query(reading: Reading) -> tuple[list[JobRow], str | None]:
        jobs = job_lists.of_task(reading, task, after=key, limit=limit + 1)
        page = jobs[:limit]
        if len(jobs) <= limit:
            return rows_of_jobs(reading, page), None
        last = page[-1]
        follows = cursor("runs", (last.task_id, last.map_index, last.destination, last.job_id))
        return rows_of_jobs(reading, page), follows

    items, next_after = reads.journal(query)
    return Page(items=tuple(items), next_after=next_after)


def job_counts(reads: Reads) -> JobCounts:
    """Return how many jobs need a person, and how many have not ended, each up to a limit.

    Raises:
        JournalUnavailableError: The journal cannot be reached.
    """
    if not reads.has_journal:
        return JobCounts(needs_you=0, unended=0, first=())
    found = job_page(reads, JobFilter(needs="you"), None, COUNTED_NEEDS).items
    unended = reads.journal(
        lambda reading: job_lists.count_unended(reading, queries.UNENDED, COUNTED_UNENDED)
    )
    return JobCounts(needs_you=len(found), unended=unended, first=found[:5])


def rows_of_jobs(reading: Reading, jobs: Sequence[Job]) -> list[JobRow]:
    """Return the rows of a page of jobs, with their leases and committed tasks."""
    return _rows(reading, list(zip(jobs, _leases(reading, jobs), strict=True)))


def _rows(reading: Reading, jobs: Sequence[tuple[Job, LeaseState | None]]) -> list[JobRow]:
    committed = job_lists.committed_tasks(reading, [job for job, _ in jobs if job.tasks is None])
    return [_row(job, lease, committed.get(job.key, 0)) for job, lease in jobs]


def _leases(reading: Reading, jobs: Sequence[Job]) -> list[LeaseState | None]:
    """Return the state of each job's lease; None if the job has ended or has none."""
    now_s = reading.now_s()
    found = queries.leases_of(reading, [job for job in jobs if job.ended_s is None])
    leases = [found.get(job_resource(job.destination, job.job_id)) for job in jobs]
    return [None if lease is None else state_of(lease, now_s) for lease in leases]


def refuse_unkept(*texts: object) -> None:
    """Refuse text that no database has.

    Raises:
        InvalidInputError: It contains a null character or a surrogate.
    """
    if any(isinstance(text, str) and _UNKEPT.search(text) for text in texts):
        raise InvalidInputError(
            "a parameter contains a null character or a surrogate, which no job has; nothing was read; leave "
            "it out"
        )


def needs_of(job: Job, lease: LeaseState | None) -> tuple[Needs, str]:
    """Return what a job needs by the registry, and why in one sentence; empty for `nothing`."""
    if job.attention in _ATTENTION:
        return "you", _ATTENTION[job.attention]
    if job.ended_s is not None:
        return "nothing", ""
    if job.phase == "open" or lease is LeaseState.SOFT:
        return _OPEN[lease]
    if lease in {LeaseState.HELD, LeaseState.SUSPENDED}:
        return "wait", "Its driver holds its lease and brings it to its end."
    if lease is LeaseState.RECOVERING:
        return "wait", "Recovery brings it to its end."
    return "you", "It was decided but has not ended, and its driver is gone."


def origin_of(job: Job) -> Origin | None:
    """Return the Airflow task that set a job up, if the registry knows it."""
    if job.dag_id is None:
        return None
    index = -1 if job.map_index is None else job.map_index
    return Origin(dag_id=job.dag_id, run_id=job.run_id or "", task_id=job.task_id or "", map_index=index)


_ATTENTION: Final = {
    "quarantined": "It was set aside; abort it to delete what it wrote.",
    "uploads left": "Some of its uploads could not be aborted; recover it to try again.",
}
_OPEN: Final[dict[LeaseState | None, tuple[Needs, str]]] = {
    LeaseState.HELD: ("wait", "Its driver holds its lease."),
    LeaseState.SOFT: ("wait", "Its driver has not renewed its lease in time."),
    LeaseState.SUSPENDED: ("wait", "Its tasks are writing, or its next step has not begun."),
    LeaseState.RECOVERING: ("wait", "Recovery looks at it."),
    LeaseState.HARD: ("you", "Its driver is gone before the decision."),
    LeaseState.FREE: ("you", "Its driver has left before the decision."),
    None: ("wait", "Its lease is not in the journal."),
}


class _Scan(NamedTuple):
    """A part of a list: its items, and the key after which the next one begins."""

    items: list[JobRow]
    last: tuple[Any, ...] | None


def _scan(
    reading: Reading,
    source: Callable[[Reading, Any, int], list[Job]],
    key_of: Callable[[Job], tuple[Any, ...]],
    is_wanted: Callable[[Job, LeaseState | None], bool],
    *,
    key: Any,
    limit: int,
) -> _Scan:
    """Read jobs until the page is full, there are no more, or `SCANNED` were read."""
    items: list[tuple[Job, LeaseState | None]] = []
    number, scanned = limit + 1, 0
    while scanned < SCANNED:
        jobs = source(reading, key, number)
        for job, lease in zip(jobs, _leases(reading, jobs), strict=True):
            if len(items) == limit:
                return _Scan(_rows(reading, items), key)  # a job follows; perhaps not one that is wanted
            key = key_of(job)
            if is_wanted(job, lease):
                items.append((job, lease))
        if len(jobs) < number:
            return _Scan(_rows(reading, items), None)
        scanned += len(jobs)
        number = CHUNK
    return _Scan(_rows(reading, items), key)


def _row(job: Job, lease: LeaseState | None, committed: int) -> JobRow:
    need, why = needs_of(job, lease)
    is_timed = job.ended_s is not None and job.decided_s is not None
    return JobRow(
        job_id=job.job_id,
        destination=job.destination,
        name=job.name,
        phase=job.phase,
        needs=need,
        needs_why=why,
        lease=lease,
        mode=job.mode,
        committer=job.committer,
        origin=origin_of(job),
        tasks_committed=committed if job.tasks is None else job.tasks,
        tasks_expected=job.tasks,
        files=job.files,
        rows=job.rows,
        size_bytes=job.size_bytes,
        created_s=job.set_up_s,
        changed_s=job.changed_s,
        ended_s=job.ended_s,
        commit_s=max(0.0, (job.ended_s or 0.0) - (job.decided_s or 0.0)) if is_timed else None,
    )
