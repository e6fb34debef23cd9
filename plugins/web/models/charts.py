"""Numbers over time, for charts and for the tables beside them."""

from __future__ import annotations

from typing import Literal

from lockgate.plugins.web.models.model import Model

ChartName = Literal["commit-time", "rows", "bytes", "live-files", "live-bytes"]


class Series(Model):
    """A series of values.

    Attributes:
        unit: `s`, `rows`, `bytes`, `files` or `jobs`.
        at_s: Begin of each interval.
        values: Value of each interval; None where nothing was measured.
    """

    name: ChartName
    title: str
    unit: str
    interval_s: float
    at_s: tuple[float, ...]
    values: tuple[float | None, ...]
