"""Lists of jobs from the registry, with what each job needs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias

from fastapi import APIRouter, Depends, Query
from pydantic import BeforeValidator

from lockgate.plugins.web.access import Host, HostOfRequest
from lockgate.plugins.web.answers import DEFAULT_LIMIT, After, Limit, Model, Page, cursor, key_after, page_of
from lockgate.plugins.web.request_reads import ReadsOfRequest
from lockgate.storage_core.commit.registry import job_lists, queries
from lockgate.storage_core.commit.registry.needs import ENDED, Needs, needs_of
from lockgate.storage_core.commit.registry.rows import Job, Phase
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.ids import job_resource
from lockgate.storage_core.journal import LeaseState, Reading
from lockgate.storage_core.journal.entries.lease_entries import state_of
from lockgate.storage_core.stores.open_store import parse_destination

router = APIRouter(tags=["jobs"])

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

NO_JOBS: Final = (
    "Journal {journal} has no job. If jobs have run, they have another journal: name it in {settings_from}."
)
"""No all-clear: a server that reads another journal than the tasks would see none of their jobs."""

_ALL: Final = queries.UNENDED | ENDED
_UNKEPT: Final = re.compile("[\0\ud800-\udfff]")
_BLANK: Final = BeforeValidator(lambda text: text or None)
"""A form sends a field that is not filled in as an empty text."""


class Origin(Model):
    """The Airflow task that set a job up.

    Attributes:
        triggered_by: User who triggered the DAG run, in a job and in a destination's log; empty elsewhere,
            for a schedule, and if Airflow has the run no more.
    """

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1
    triggered_by: str = ""


class JobRow(Model):
    """A job in the list.

    Attributes:
        phase: Phase in the registry: `open`, `committing`, `aborting`, `committed` or `failed`.
        needs_why: One sentence: why the job waits or needs a person; empty for `nothing`.
        reason: Why it was aborted, reverted, failed or set aside, cut after 200 characters; else empty.
        lease: State of the driver's lease; None if the job has ended or has none.
        tasks_expected: None if the driver has not frozen its list of tasks.
        rows: None if any writer did not count them.
        commit_s: Seconds from the decision to the end; None before, or if unknown.
    """

    job_id: str
    destination: str
    name: str
    phase: str
    needs: Needs
    needs_why: str
    reason: str
    lease: str | None
    mode: str
    committer: str
    origin: Origin | None
    tasks_committed: int
    tasks_expected: int | None
    files: int | None
    rows: int | None
    size_bytes: int | None
    created_s: float
    changed_s: float
    ended_s: float | None
    commit_s: float | None


class JobCounts(Model):
    """How many jobs need something, for the card on the home page.

    Attributes:
        needs_you: At most 100.
        unended: At most 1,000.
        journal: URL of the journal that was read, without a password; empty if this server has none.
        recovery_stopped: If jobs have not ended: why recovery does not run, and the remedy; else empty.
        empty_why: If no job is known: which journal was read, and where to name another; else empty.
    """

    needs_you: int
    unended: int
    journal: str
    empty_why: str
    first: tuple[JobRow, ...]
    recovery_stopped: str


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
        wanted = {None: _ALL, "nothing": ENDED, "wait": queries.UNENDED, "you": queries.UNENDED}[self.needs]
        return wanted if self.phase is None else wanted & {self.phase}

    def jobs(self, reading: Reading, key: Any, number: int) -> list[Job]:
        """Return the next jobs after a key by the indexes of the registry; `fits` says which are wanted."""
        attention = self.needs == "you" and self.phase in {None, "committed", "failed"}
        if self.is_by_name:
            return job_lists.by_name(
                reading,
                sorted(self.phases),
                self.search,
                destination=self.destination,
                attention=attention,
                after=key and job_lists.NamedPlace(*key),
                limit=number,
            )
        return job_lists.by_time(
            reading,
            sorted(self.phases),
            destination=self.destination,
            attention=attention,
            after=key and job_lists.Place(*key),
            newest_first=self.sort == "newest",
            limit=number,
        )

    def fits(self, job: Job, lease: LeaseState | None) -> bool:
        """Return whether a job is in the list."""
        is_phase = self.phase in {None, job.phase}
        is_place = self.destination in {None, job.destination}
        return is_phase and is_place and self.needs in {None, needs_of(job.phase, lease, job.attention)[0]}


def _filters(
    needs: Annotated[Needs | None, _BLANK, Query(description="What the jobs need.")] = None,
    phase: Annotated[Phase | None, _BLANK, Query(description="Phase in the registry.")] = None,
    destination: Annotated[str | None, Query(max_length=2_048, description="URL of a destination.")] = None,
    search: Annotated[
        str, Query(max_length=200, description="Beginning of the jobs' names; orders the list by name.")
    ] = "",
    sort: Annotated[
        Sort | None, _BLANK, Query(description="Order: by time of the set-up, or by name.")
    ] = "newest",
) -> JobFilter:
    place = parse_destination(destination) if destination else None
    refuse_unkept(search, place)
    return JobFilter(needs=needs, phase=phase, destination=place, search=search, sort=sort or "newest")


Filters = Annotated[JobFilter, Depends(_filters)]
"""Parameter of a route: which jobs to list."""


@router.get("/jobs")
def job_page(
    reads: ReadsOfRequest, filters: Filters, after: After = None, limit: Limit = DEFAULT_LIMIT
) -> Page[JobRow]:
    """List jobs of all destinations. A page with a rare filter may have few items although others follow.

    Raises:
        InvalidInputError: The cursor is of another list, or a filter is invalid.
        JournalUnavailableError: The journal cannot be reached.
    """
    kinds = (str, str, str) if filters.is_by_name else (float, str, str)
    key = key_after(filters.list_name, after, *kinds)
    refuse_unkept(*(key or ()))
    if not reads.has_journal:
        return Page(items=(), unknown=(NO_JOURNAL,))
    items, last = reads.journal(lambda reading: _scan(reading, filters, key, limit))
    return Page(items=tuple(items), next_after=None if last is None else cursor(filters.list_name, last))


@router.get("/jobs/counts")
def job_counts(reads: ReadsOfRequest, host: HostOfRequest) -> JobCounts:
    """Return how many jobs need a person, and how many have not ended, each up to a limit.

    Raises:
        JournalUnavailableError: The journal cannot be reached.
    """
    if not reads.has_journal:
        return JobCounts(
            needs_you=0, unended=0, journal="", empty_why=NO_JOURNAL, first=(), recovery_stopped=""
        )
    found = job_page(reads, JobFilter(needs="you"), None, COUNTED_NEEDS).items
    unended = reads.journal(
        lambda reading: job_lists.count_unended(reading, queries.UNENDED, COUNTED_UNENDED)
    )
    journal, why = reads.journal_name, ""
    if not found and not unended and not job_page(reads, JobFilter(), None, 1).items:
        why = NO_JOBS.format(journal=journal, settings_from=host.settings_from)
    stopped = host.stopped("recover") if unended else None
    return JobCounts(
        needs_you=len(found),
        unended=unended,
        journal=journal,
        empty_why=why,
        first=found[:5],
        recovery_stopped=f"Nothing is recovered, because {stopped.why}." if stopped else "",
    )


Name = Annotated[str, Query(max_length=250)]


def _unmapped(text: object) -> object:
    """Return -1 for what Airflow sends for an unmapped task: it leaves its placeholder as it is."""
    return -1 if text in {"", "{MAP_INDEX}"} else text


MapIndex = Annotated[int | None, BeforeValidator(_unmapped), Query(ge=-1, le=2**31)]


@router.get("/runs")
def run_page(  # noqa: PLR0917 - each is a query parameter
    reads: ReadsOfRequest,
    dag_id: Name,
    run_id: Name,
    task_id: Annotated[str | None, Query(max_length=250)] = None,
    map_index: MapIndex = None,
    after: After = None,
    limit: Limit = DEFAULT_LIMIT,
) -> Page[JobRow]:
    """List the jobs that a DAG run, one of its tasks, or one mapped task set up.

    Raises:
        InvalidInputError: The cursor is of another list.
        JournalUnavailableError: The journal cannot be reached.
    """
    task = job_lists.Task(dag_id, run_id, task_id, map_index)
    key = key_after("runs", after, str, int, str, str)
    refuse_unkept(*task, *(key or ()))
    if not reads.has_journal:
        return Page(items=(), unknown=(NO_JOURNAL,))
    if key is not None:
        key = (key[0], max(-1, min(key[1], GREATEST_INDEX)), *key[2:])

    def query(reading: Reading) -> tuple[list[Job], list[JobRow]]:
        jobs = job_lists.of_task(reading, task, after=key, limit=limit + 1)
        return jobs, _rows(reading, list(zip(jobs, _leases(reading, jobs), strict=True)))

    jobs, rows = reads.journal(query)
    return page_of(
        "runs",
        list(zip(jobs, rows, strict=True)),
        limit,
        lambda found: (found[0].task_id, found[0].map_index, found[0].destination, found[0].job_id),
        lambda found: found[1],
    )


def with_users(host: Host, origins: Sequence[Origin | None]) -> list[Origin | None]:
    """Return the origins with the users who triggered their runs, whom only the host knows."""
    runs = {(origin.dag_id, origin.run_id) for origin in origins if origin is not None}
    users = host.run_users(runs) if runs else {}

    def named(origin: Origin | None) -> Origin | None:
        user = "" if origin is None else users.get((origin.dag_id, origin.run_id), "")
        return origin.model_copy(update={"triggered_by": user}) if origin is not None and user else origin

    return [named(origin) for origin in origins]


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


def origin_of(job: Job) -> Origin | None:
    """Return the Airflow task that set a job up, if the registry knows it."""
    if job.dag_id is None:
        return None
    index = -1 if job.map_index is None else job.map_index
    return Origin(dag_id=job.dag_id, run_id=job.run_id or "", task_id=job.task_id or "", map_index=index)


class _Scan(NamedTuple):
    """A part of a list: its items, and the key after which the next one begins."""

    items: list[JobRow]
    last: tuple[Any, ...] | None


def _scan(reading: Reading, filters: JobFilter, key: Any, limit: int) -> _Scan:
    """Read jobs until the page is full, there are no more, or `SCANNED` were read."""
    items: list[tuple[Job, LeaseState | None]] = []
    number, scanned = limit + 1, 0
    while scanned < SCANNED:
        jobs = filters.jobs(reading, key, number)
        for job, lease in zip(jobs, _leases(reading, jobs), strict=True):
            if len(items) == limit:
                return _Scan(_rows(reading, items), key)  # a job follows; perhaps not one that is wanted
            key = job_lists.named_place_of(job) if filters.is_by_name else job_lists.place_of(job)
            if filters.fits(job, lease):
                items.append((job, lease))
        if len(jobs) < number:
            return _Scan(_rows(reading, items), None)
        scanned += len(jobs)
        number = CHUNK
    return _Scan(_rows(reading, items), key)


def _row(job: Job, lease: LeaseState | None, committed: int) -> JobRow:
    need, why = needs_of(job.phase, lease, job.attention)
    is_timed = job.ended_s is not None and job.decided_s is not None
    return JobRow(
        job_id=job.job_id,
        destination=job.destination,
        name=job.name,
        phase=job.phase,
        needs=need,
        needs_why=why,
        reason=job.reason or "",
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
