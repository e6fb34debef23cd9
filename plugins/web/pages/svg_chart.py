"""Charts: SVG made by pygal, without its own style and script, which the security policy would refuse."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final
from xml.etree import ElementTree as ET

from markupsafe import Markup

from lockgate.plugins.web.api.charts import Series

_SVG: Final = "{http://www.w3.org/2000/svg}"
_LINES: Final = frozenset({"live-files", "live-bytes"})
"""Levels are lines; what happened in an interval is a bar."""
_DAY_S: Final = 86_400


@lru_cache(maxsize=64)
def chart(series: Series, summary: str) -> Markup:
    """Return the chart of a series as an `<svg>` element; its colours come from the style sheet.

    Args:
        series: The values.
        summary: What a screen reader says in place of the picture; the numbers stand in a table beside it.
    """
    import pygal  # noqa: PLC0415 - half a second, and a JSON client needs no charts

    # pygal's finder for plugins lacks `find_spec`, and Python warns of it at every later import.
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, pygal.PluginImportFixer)]

    kind = pygal.Line if series.name in _LINES else pygal.Bar
    drawn = kind(
        width=560,
        height=170,
        margin=4,
        margin_right=12,
        spacing=6,
        show_legend=False,
        no_prefix=True,
        js=(),
        css=(),
        dots_size=2,
        zero=0,
        include_x_axis=True,
        value_formatter=lambda value: short(value, series.unit),
        show_minor_x_labels=False,
        x_labels_major_count=5,
        truncate_label=-1,
    )
    drawn.x_labels = [label(at_s, series.interval_s) for at_s in series.at_s]
    drawn.y_labels = list(
        ticks(max((value for value in series.values if value is not None), default=0), series.unit)
    )
    drawn.add(series.title, list(series.values))
    return Markup(_plain(drawn.render(disable_xml_declaration=True), series.title, summary))  # noqa: S704 - made here, by ElementTree


def ticks(top: float, unit: str) -> Iterator[float]:
    """Return about four round values from 0 to at least the top."""
    base = 1024.0 if unit == "bytes" else 1000.0
    scale = base ** max(0, math.floor(math.log(top, base))) if top > 0 else 1.0
    least = top / scale / 4
    power = 10 ** math.floor(math.log10(least)) if least > 0 else 1.0
    step = scale * next((power * part for part in (1, 2, 2.5, 5) if power * part >= least), 10 * power)
    if unit in {"jobs", "files", "rows", "bytes"}:
        step = max(1.0, step)
    return (step * index for index in range(max(1, math.ceil(top / step)) + 1))


def label(at_s: float, interval_s: float) -> str:
    """Return the name of an interval."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%d %b" if interval_s >= _DAY_S else "%d %b %H:%M")


def short(value: float | None, unit: str) -> str:
    """Return a value for an axis."""
    if value is None:
        return ""
    if unit == "s":
        return f"{value:g} s" if value < 120 else f"{value / 60:.0f} min"
    base = 1024 if unit == "bytes" else 1000
    marks = ("", "Ki", "Mi", "Gi", "Ti", "Pi") if unit == "bytes" else ("", "k", "M", "G", "T", "P")
    step = 0
    while abs(value) >= base and step < len(marks) - 1:
        value, step = value / base, step + 1
    text = f"{value:.3g}" if value < 1000 else f"{value:.0f}"
    return f"{text} {marks[step]}B" if unit == "bytes" else f"{text}{marks[step]}"


def _plain(drawn: str, title: str, summary: str) -> str:
    """Return the drawing alone: without styles, scripts and comments, with a name."""
    parsed = ET.fromstring(drawn)  # noqa: S314 - pygal's own output
    for parent in list(parsed.iter()):
        for child in list(parent):
            name = str(child.tag).removeprefix(_SVG)
            if name in {"defs", "title", "desc"} or "overlay" in str(child.get("class", "")):
                parent.remove(child)
    for found in parsed.iter():
        found.attrib.pop("style", None)
        found.attrib.pop("id", None)
        found.tag = str(found.tag).removeprefix(_SVG)
    box = parsed.attrib["viewBox"]
    parsed.attrib = {"viewBox": box, "class": "drawing", "role": "img", "aria-label": f"{title}: {summary}"}
    return ET.tostring(parsed, encoding="unicode")
