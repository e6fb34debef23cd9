"""Numbers of each day, from the registry; live files from the log. What is not known is None."""

from __future__ import annotations

import threading
from typing import Final

from lockgate.plugins.web.facts.destinations import live_file_counts
from lockgate.plugins.web.facts.job_index import refuse_unkept
from lockgate.plugins.web.models.charts import ChartName, Series
from lockgate.plugins.web.reads import Reads
from lockgate.storage_core.commit.registry.job_lists import EndedTotals, ended_totals
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.stores.open_store import parse_destination

DAY_S: Final = 86_400.0
KEPT_S: Final = 600.0
"""How long the totals of a past day are kept, so that a chart reads today's jobs only."""

KEPT_DAYS: Final = 5_000

_TITLES: Final[dict[ChartName, tuple[str, str]]] = {
    "commit-time": ("Mean time from the decision to the end", "s"),
    "rows": ("Committed rows", "rows"),
    "bytes": ("Committed bytes", "bytes"),
    "live-files": ("Live files", "files"),
}


def chart(reads: Reads, name: ChartName, days: int, destination: str | None = None) -> Series:
    """Return a series with one value for each day in UTC, today's last; see `_TITLES`.

    Each value is of the jobs that were committed on that day; that of `live-files` is of the day's end.

    Args:
        reads: Reads of the application.
        name: Name of the chart.
        days: Number of days.
        destination: Only jobs of this destination; `live-files` needs one.

    Raises:
        InvalidInputError: The destination is invalid, or missing.
        DestinationNotFoundError: The destination is not known.
        StoreUnavailableError: The destination does not answer.
        JournalUnavailableError: The journal cannot be reached.
    """
    place = destination and parse_destination(destination)
    refuse_unkept(place)
    if name == "live-files" and not place:
        raise InvalidInputError("chart live-files: name a destination; nothing was read")
    title, unit = _TITLES[name]
    today_s = reads.clock.now_s() // DAY_S * DAY_S
    begins = tuple(today_s - DAY_S * back for back in range(days - 1, -1, -1))
    values: tuple[float | None, ...] = (None,) * days
    if name == "live-files" and place:
        ends_s = [min(begin_s + DAY_S, reads.clock.now_s()) for begin_s in begins]
        values = live_file_counts(reads, place, ends_s)
    elif reads.has_journal:
        values = tuple(_value(name, _totals(reads, begin_s, place or None)) for begin_s in begins)
    return Series(name=name, title=title, unit=unit, interval_s=DAY_S, at_s=begins, values=values)


def _value(name: ChartName, totals: EndedTotals) -> float | None:
    if name == "commit-time":
        return totals.commit_s
    return totals.rows if name == "rows" else totals.size_bytes


_Key = tuple[str, str | None, float]


class _Kept:
    """Totals of days, and until when they are used."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: dict[_Key, tuple[float, EndedTotals]] = {}

    def get(self, key: _Key, now_s: float) -> EndedTotals | None:
        with self._lock:
            until_s, totals = self._totals.get(key, (0.0, None))
        return totals if now_s < until_s else None

    def put(self, key: _Key, totals: EndedTotals, until_s: float) -> None:
        with self._lock:
            while len(self._totals) >= KEPT_DAYS:
                del self._totals[next(iter(self._totals))]
            self._totals[key] = (until_s, totals)


_KEPT: Final = _Kept()


def _totals(reads: Reads, begin_s: float, destination: str | None) -> EndedTotals:
    now_s, end_s = reads.clock.monotonic_s(), begin_s + DAY_S
    key = (reads.client.journal.identity, destination, begin_s)
    found = _KEPT.get(key, now_s)
    if found is None:
        found = reads.journal(lambda reading: ended_totals(reading, begin_s, end_s, destination))
        if end_s <= reads.clock.now_s():
            _KEPT.put(key, found, now_s + KEPT_S)
    return found
