"""Numbers of each day, from the registry; live files from the log. What is not known is None."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query

from lockgate.plugins.web.answers import Model
from lockgate.plugins.web.api.destinations import live_totals
from lockgate.plugins.web.api.jobs import refuse_unkept
from lockgate.plugins.web.request_reads import ReadsOfRequest
from lockgate.storage_core.commit.registry.day_totals import DAY_S, day_of
from lockgate.storage_core.commit.registry.job_lists import day_totals
from lockgate.storage_core.commit.registry.rows import JobDay
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.stores.open_store import parse_destination

router = APIRouter(prefix="/charts", tags=["charts"])

ChartName = Literal["commit-time", "rows", "bytes", "live-files", "live-bytes"]

_TITLES: Final[dict[ChartName, tuple[str, str]]] = {
    "commit-time": ("Mean time from the decision to the end", "s"),
    "rows": ("Committed rows", "rows"),
    "bytes": ("Committed bytes", "bytes"),
    "live-files": ("Live files", "files"),
    "live-bytes": ("Live bytes", "bytes"),
}

_LIVE: Final[dict[ChartName, Literal["files", "bytes"]]] = {"live-files": "files", "live-bytes": "bytes"}


class Series(Model):
    """A series of values, each of the jobs that were committed in an interval, or of live data at its end.

    Attributes:
        unit: `s`, `rows`, `bytes` or `files`.
        at_s: Begin of each interval.
        values: Value of each interval; None where nothing was measured.
    """

    name: ChartName
    title: str
    unit: str
    interval_s: float
    at_s: tuple[float, ...]
    values: tuple[float | None, ...]


@router.get("/{name}")
def chart(
    reads: ReadsOfRequest,
    name: ChartName,
    days: Annotated[int, Query(ge=1, le=90, description="Number of days, today included.")] = 30,
    destination: Annotated[str | None, Query(max_length=2_048, description="URL of a destination.")] = None,
) -> Series:
    """Return a series with one value for each day in UTC; None where nothing is recorded.

    Raises:
        InvalidInputError: The destination is invalid, or missing, which live data need.
        DestinationNotFoundError: The destination is not known.
        StoreUnavailableError: The destination does not answer.
        JournalUnavailableError: The journal cannot be reached.
    """
    place = destination and parse_destination(destination)
    refuse_unkept(place)
    if name in _LIVE and not place:
        raise InvalidInputError(f"chart {name}: name a destination; nothing was read")
    title, unit = _TITLES[name]
    today_s = reads.clock.now_s() // DAY_S * DAY_S
    begins = tuple(today_s - DAY_S * back for back in range(days - 1, -1, -1))
    values: tuple[float | None, ...] = (None,) * days
    if name in _LIVE and place:
        ends_s = [min(begin_s + DAY_S, reads.clock.now_s()) for begin_s in begins]
        values = live_totals(reads, place, ends_s, _LIVE[name])
    elif reads.has_journal:
        first, last = day_of(begins[0]), day_of(begins[-1])
        totals = reads.journal(lambda reading: day_totals(reading, first, last, place or None))
        values = tuple(_value(name, totals.get(day)) for day in range(first, last + 1))
    return Series(name=name, title=title, unit=unit, interval_s=DAY_S, at_s=begins, values=values)


def _value(name: ChartName, totals: JobDay | None) -> float | None:
    if totals is None:
        return None
    if name == "commit-time":
        return totals.commit_ms / totals.with_time / 1000 if totals.with_time else None
    if name == "rows":
        return totals.rows if totals.with_rows else None
    return totals.size_bytes if totals.with_size else None
