"""Lists of jobs for people: filtered, ordered and paged by an index, so that a page costs the same anywhere.

No query counts or skips rows. Each returns at most `limit` rows after a key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from heapq import merge
from itertools import islice
from typing import Any, Final, NamedTuple, get_args

from sqlalchemy import (
    ColumnElement,
    Select,
    and_,
    bindparam,
    collate,
    func,
    literal,
    literal_column,
    select,
    tuple_,
)

from lockgate.storage_core.commit.registry.day_totals import EVERYWHERE
from lockgate.storage_core.commit.registry.rows import RESTS, Job, JobDay, Phase, TaskAttempt
from lockgate.storage_core.journal.database.bulk import JOURNAL
from lockgate.storage_core.journal.database.pipeline import Statement, execute_pipelined
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
        attention: Also ended jobs that need attention: quarantined ones, and those that left uploads or
            replaced files.
        after: Key of the last job of the previous page.
        newest_first: Order.
        limit: Maximum number of jobs.
    """
    return _merged(
        reading,
        _streams(phases, destination, attention),
        lambda where: _by_time(reading, where, after, newest_first),
        place_of,
        reverse=newest_first,
        limit=limit,
    )


def by_name(
    reading: Reading,
    phases: Iterable[str],
    prefix: str = "",
    *,
    destination: str | None = None,
    attention: bool = False,
    after: NamedPlace | None = None,
    limit: int,
) -> list[Job]:
    """Return jobs whose names begin with a text, by name; arguments as for `by_time`."""
    at, name = table_of(Job).c, name_of(reading)
    key = {
        "name": name,
        "destination": _ordered(reading, at.destination),
        "job_id": _ordered(reading, at.job_id),
    }
    if destination is not None:
        del key["destination"]  # the same in all, and not in the order of that index

    def query(where: ColumnElement[bool]) -> Select[Any]:
        found = _jobs(reading).where(where, name >= (after.name if after else prefix), name < prefix + _LAST)
        if after is not None:
            given = (literal(getattr(after, column)) for column in key)
            found = found.where(tuple_(*key.values()) > tuple_(*given))
        return found.order_by(*key.values())

    streams = _streams(phases, destination, attention)
    return _merged(reading, streams, query, named_place_of, limit=limit)


def named_exactly(reading: Reading, name: str) -> list[Job]:
    """Return the generations of a name, at all destinations."""
    phase = table_of(Job).c.phase  # the index of names begins with it
    query = _jobs(reading).where(phase.in_(get_args(Phase)), name_of(reading) == name)
    return list(rows_of(Job, reading.connection.execute(query)))


def of_task(reading: Reading, task: Task, *, after: tuple[Any, ...] | None = None, limit: int) -> list[Job]:
    """Return the jobs that an Airflow task or DAG run set up, by task, map index, destination and id."""
    at = table_of(Job).c
    query = _jobs(reading).where(at.dag_id == task.dag_id, at.run_id == task.run_id)
    if task.task_id is not None:
        query = query.where(at.task_id == task.task_id)
    if task.map_index is not None:
        query = query.where(at.map_index == task.map_index)
    # Not the column itself: to read in the order of the key, SQLite would read the jobs of all runs.
    destination = func.coalesce(at.destination, "")
    key = (at.task_id, at.map_index, destination, at.job_id)
    if after is not None:
        query = query.where(tuple_(*key) > tuple_(*map(literal, after)))
    return _read(reading, query.order_by(*key), limit)


def committed_tasks(reading: Reading, jobs: Iterable[Job]) -> dict[tuple[Any, ...], int]:
    """Return how many tasks of each job have committed, at most `COUNTED_TASKS`, in one round trip."""
    keys = [job.key for job in jobs]
    statements = [
        Statement(_count_tasks(), {JOURNAL: reading.journal, "of_destination": destination, "of_job": job_id})
        for destination, job_id in keys
    ]
    found = execute_pipelined(reading.connection, statements)
    return {key: number for key, [(number,)] in zip(keys, found, strict=True)}


@cache
def _count_tasks() -> Select[Any]:
    """Return the statement for one job; a statement for many takes longer to build than to execute."""
    at = table_of(TaskAttempt).c
    of_job = (
        at.journal == bindparam(JOURNAL),
        at.destination == bindparam("of_destination"),
        at.job_id == bindparam("of_job"),
    )
    found = select(at.task_id).where(*of_job).limit(literal_column(str(COUNTED_TASKS))).subquery()
    return select(func.count(found.c.task_id.distinct()))


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


def unended_at(
    reading: Reading, phases: Iterable[str], destinations: Iterable[str], limit: int
) -> dict[str, int]:
    """Return the number of jobs in some phases at each destination that has one, counting at most `limit`."""
    at = table_of(Job).c
    found = (
        select(at.destination)
        .where(
            at.journal == reading.journal,
            at.destination.in_(list(destinations)),
            at.phase.in_(sorted(phases)),
        )
        .limit(limit)
        .subquery()
    )
    counted = select(found.c.destination, func.count()).group_by(found.c.destination)
    return {row[0]: row[1] for row in reading.connection.execute(counted)}


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
    return _ordered(reading, table_of(Job).c.name)


def _ordered(reading: Reading, column: ColumnElement[str]) -> ColumnElement[str]:
    """Return a column in the order of code points, in which lists are merged."""
    return column if reading.database.is_sqlite else collate(column, "C")


def _streams(phases: Iterable[str], destination: str | None, attention: bool) -> list[ColumnElement[bool]]:
    """Return conditions of jobs that an index has in order; together they select those of a list."""
    at = table_of(Job).c
    found: list[ColumnElement[bool]] = [at.phase == phase for phase in phases]
    if attention:
        found += [at.attention == why for why in ("quarantined", *RESTS)]
    return found if destination is None else [and_(one, at.destination == destination) for one in found]


def _merged(
    reading: Reading,
    streams: Iterable[ColumnElement[bool]],
    query: Callable[[ColumnElement[bool]], Select[Any]],
    key: Callable[[Job], tuple[Any, ...]],
    *,
    reverse: bool = False,
    limit: int,
) -> list[Job]:
    ordered = [_read(reading, query(stream), limit) for stream in streams]
    merged = merge(*ordered, key=key, reverse=reverse)
    return list(islice({job.key: job for job in merged}.values(), limit))


def _jobs(reading: Reading) -> Select[Any]:
    table = table_of(Job)
    return select(*read_columns(table)).where(table.c.journal == reading.journal)


def _by_time(
    reading: Reading, where: ColumnElement[bool], after: Place | None, newest_first: bool
) -> Select[Any]:
    table = table_of(Job)
    at = table.c
    key = (at.set_up_s, _ordered(reading, at.destination), _ordered(reading, at.job_id))
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
