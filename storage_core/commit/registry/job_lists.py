"""Lists of jobs for people: filtered, ordered and paged by an index, so that a page costs the same anywhere.

No query counts or skips rows. Each returns at most `limit` rows after a key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import merge
from itertools import islice
from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, Select, and_, collate, func, literal, select, tuple_, union_all

from lockgate.storage_core.commit.registry.day_totals import EVERYWHERE
from lockgate.storage_core.commit.registry.rows import Job, JobDay, TaskAttempt
from lockgate.storage_core.journal.database.row_access import rows_of
from lockgate.storage_core.journal.database.schema import read_columns, table_of
from lockgate.storage_core.journal.read.snapshot_read import Reading

COUNTED_TASKS: Final = 1_000
"""Committed tasks of a job that are counted."""

_LAST: Final = "\U0010ffff"


class Place(NamedTuple):
    """Key of a job in a list by time."""

    set_up_s: float
    destination: str
    job_id: str


class NamedPlace(NamedTuple):
    """Key of a job in a list by name."""

    name: str
    destination: str
    job_id: str


class Task(NamedTuple):
    """An Airflow task, or a DAG run if `task_id` is None."""

    dag_id: str
    run_id: str
    task_id: str | None = None
    map_index: int | None = None


def place_of(job: Job) -> Place:
    """Return a job's key in a list by time."""
    return Place(job.set_up_s, job.destination, job.job_id)


def named_place_of(job: Job) -> NamedPlace:
    """Return a job's key in a list by name."""
    return NamedPlace(job.name, job.destination, job.job_id)


def by_time(
    reading: Reading,
    phases: Iterable[str],
    *,
    destination: str | None = None,
    attention: bool = False,
    after: Place | None = None,
    newest_first: bool = True,
    limit: int,
) -> list[Job]:
    """Return jobs of some phases by the time of their set-up.

    Args:
        reading: State of the journal.
        phases: Phases; an index has the order within each, and the result merges them.
        destination: Only jobs of this destination.
        attention: Also quarantined jobs; their registered phase is `failed`.
        after: Key of the last job of the previous page.
        newest_first: Order.
        limit: Maximum number of jobs.
    """
    at = table_of(Job).c
    streams: list[ColumnElement[bool]] = [at.phase == phase for phase in phases]
    if attention:
        streams.append(at.attention == "quarantined")
    ordered: list[Sequence[Job]] = []
    for stream in streams:
        where = stream if destination is None else and_(stream, at.destination == destination)
        ordered.append(_read(reading, _by_time(where, after, newest_first), limit))
    merged = merge(*ordered, key=place_of, reverse=newest_first)
    return list(islice({job.key: job for job in merged}.values(), limit))


def by_name(
    reading: Reading,
    prefix: str,
    *,
    after: NamedPlace | None = None,
    limit: int,
) -> list[Job]:
    """Return jobs whose names begin with a text, by name; arguments as for `by_time`."""
    at, name = table_of(Job).c, name_of(reading)
    query = _jobs(reading).where(name >= (after.name if after else prefix), name < prefix + _LAST)
    if after is not None:
        query = query.where(tuple_(name, at.destination, at.job_id) > tuple_(*map(literal, after)))
    return _read(reading, query.order_by(name, at.destination, at.job_id), limit)


def named_exactly(reading: Reading, name: str) -> list[Job]:
    """Return the generations of a name, at all destinations."""
    query = _jobs(reading).where(name_of(reading) == name)
    return list(rows_of(Job, reading.connection.execute(query)))


def of_task(reading: Reading, task: Task, *, after: tuple[Any, ...] | None = None, limit: int) -> list[Job]:
    """Return the jobs that an Airflow task or DAG run set up, by task, map index, destination and id."""
    at = table_of(Job).c
    query = _jobs(reading).where(at.dag_id == task.dag_id, at.run_id == task.run_id)
    if task.task_id is not None:
        query = query.where(at.task_id == task.task_id)
    if task.map_index is not None:
        query = query.where(at.map_index == task.map_index)
    key = (at.task_id, at.map_index, at.destination, at.job_id)
    if after is not None:
        query = query.where(tuple_(*key) > tuple_(*map(literal, after)))
    return _read(reading, query.order_by(*key), limit)


def committed_tasks(reading: Reading, jobs: Iterable[Job]) -> dict[tuple[Any, ...], int]:
    """Return how many tasks of each job have committed, at most `COUNTED_TASKS`, in one statement."""
    at = table_of(TaskAttempt).c
    counts = []
    for job in jobs:
        found = (
            select(at.task_id)
            .where(at.journal == reading.journal, at.destination == job.destination, at.job_id == job.job_id)
            .limit(COUNTED_TASKS)
        ).subquery()
        counts.append(
            select(
                literal(job.destination),
                literal(job.job_id),
                select(func.count(found.c.task_id.distinct())).scalar_subquery(),
            )
        )
    rows = reading.connection.execute(union_all(*counts)) if counts else ()
    return {(destination, job_id): number for destination, job_id, number in rows}


def count_unended(reading: Reading, phases: Iterable[str], limit: int) -> int:
    """Return the number of jobs in some phases, at most `limit`."""
    at = table_of(Job).c
    found = (
        select(at.job_id)
        .where(at.journal == reading.journal, at.phase.in_(sorted(phases)))
        .limit(limit)
        .subquery()
    )
    return reading.connection.execute(select(func.count()).select_from(found)).scalar_one()


def day_totals(reading: Reading, first: int, last: int, destination: str | None = None) -> dict[int, JobDay]:
    """Return the totals of the committed jobs by the day of their end; days without jobs are left out.

    Args:
        reading: State of the journal.
        first: Number of the first day, from 1970-01-01 in UTC.
        last: Number of the last day.
        destination: Only jobs of this destination.
    """
    table = table_of(JobDay)
    query = select(*read_columns(table)).where(
        table.c.journal == reading.journal,
        table.c.destination == (destination or EVERYWHERE),
        table.c.day.between(first, last),
    )
    return {day.day: day for day in rows_of(JobDay, reading.connection.execute(query))}


def name_of(reading: Reading) -> ColumnElement[str]:
    """Return the column of names in the order of code points, which the index of names has."""
    name = table_of(Job).c.name
    return name if reading.database.is_sqlite else collate(name, "C")


def _jobs(reading: Reading) -> Select[Any]:
    table = table_of(Job)
    return select(*read_columns(table)).where(table.c.journal == reading.journal)


def _by_time(where: ColumnElement[bool], after: Place | None, newest_first: bool) -> Select[Any]:
    table = table_of(Job)
    at = table.c
    key = (at.set_up_s, at.destination, at.job_id)
    query = select(*read_columns(table)).where(where)
    if after is not None:
        given = tuple_(*map(literal, after))
        query = (
            query.where(at.set_up_s <= after.set_up_s, tuple_(*key) < given)
            if newest_first
            else query.where(at.set_up_s >= after.set_up_s, tuple_(*key) > given)
        )
    return query.order_by(*(column.desc() if newest_first else column.asc() for column in key))


def _read(reading: Reading, query: Select[Any], limit: int) -> list[Job]:
    mine = query.where(table_of(Job).c.journal == reading.journal).limit(limit)
    return list(rows_of(Job, reading.connection.execute(mine)))
