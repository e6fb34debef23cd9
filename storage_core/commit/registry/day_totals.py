"""Daily totals of the committed jobs: a function of the jobs, kept up to date by the entries about them.

The sums are of whole numbers, so that they do not depend on the order in which jobs are added.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from lockgate.storage_core.commit.registry.rows import Job, JobDay
from lockgate.storage_core.journal.entries.state import Key, State

DAY_S: Final = 86_400.0
EVERYWHERE: Final = ""
"""Instead of a destination: the totals of all destinations."""

GREATEST: Final = 10**15
"""A number beyond this counts as unknown, so that no sum of one day needs more than 64 bits."""


def totals_of(job: Job | None) -> JobDay | None:
    """Return what a job adds to the totals of its destination and day; None if it adds nothing."""
    if job is None or job.phase != "committed" or not _is_known(job.ended_s):
        return None
    ended_s = job.ended_s or 0.0
    commit_ms = None if job.decided_s is None else round(1000 * max(0.0, ended_s - job.decided_s))
    has_rows, has_size, has_time = _is_known(job.rows), _is_known(job.size_bytes), _is_known(commit_ms)
    return JobDay(
        destination=job.destination,
        day=day_of(ended_s),
        jobs=1,
        rows=(job.rows or 0) if has_rows else 0,
        with_rows=int(has_rows),
        size_bytes=(job.size_bytes or 0) if has_size else 0,
        with_size=int(has_size),
        commit_ms=(commit_ms or 0) if has_time else 0,
        with_time=int(has_time),
    )


def day_of(at_s: float) -> int:
    """Return the number of a day."""
    return int(at_s // DAY_S)


def days_touched(destination: str, ended_s: float | None) -> Iterable[Key]:
    """Return the rows that a committed job changes, if its end is known before the entry is written."""
    if ended_s is None or not _is_known(ended_s):
        return ()
    return [(JobDay, (place, day_of(ended_s))) for place in (destination, EVERYWHERE)]


def recount(state: State, before: Job | None, after: Job | None) -> None:
    """Change the totals for a job that was added, changed or deleted.

    Args:
        state: State of a fold.
        before: The job's row before; None if there was none.
        after: Its row now; None if it was deleted.
    """
    removed, added = totals_of(before), totals_of(after)
    if removed == added:
        return
    for totals, sign in ((removed, -1), (added, 1)):
        if totals is None:
            continue
        for place in dict.fromkeys((totals.destination, EVERYWHERE)):
            day = JobDay(destination=place, day=totals.day)
            changed = _sum(state.get(JobDay, *day.key) or day, totals, sign)
            if changed.jobs:
                state.put(changed)
            else:
                state.delete(changed)


def _is_known(value: float | None) -> bool:
    return value is not None and 0 <= value <= GREATEST


def _sum(day: JobDay, totals: JobDay, sign: int) -> JobDay:
    return JobDay(
        destination=day.destination,
        day=day.day,
        jobs=day.jobs + sign * totals.jobs,
        rows=day.rows + sign * totals.rows,
        with_rows=day.with_rows + sign * totals.with_rows,
        size_bytes=day.size_bytes + sign * totals.size_bytes,
        with_size=day.with_size + sign * totals.with_size,
        commit_ms=day.commit_ms + sign * totals.commit_ms,
        with_time=day.with_time + sign * totals.with_time,
    )
