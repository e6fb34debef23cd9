"""The page of benchmarks beside peers, and its charts, as texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks.peers.results import Result, Way
from benchmarks.report.charts import chart
from benchmarks.report.goals import rows
from benchmarks.report.titles import WAYS, title

PAGE: Final = "benchmarks.md"
CHARTS: Final = "images/benchmarks"

_HEAD: Final = Path(__file__).with_name("head.md")


def files(results: Sequence[Result]) -> dict[str, str]:
    """Return the page and its charts, by name below `docs`."""
    charts = {f"{CHARTS}/{result.name()}.svg": chart(result) for result in results if result.ways}
    return {PAGE: page(results), **charts}


def page(results: Sequence[Result]) -> str:
    """Return the page."""
    goals = list(rows(results))
    parts = [_HEAD.read_text()]
    if goals:
        parts.append("## Goals\n\n" + _table(("work", "what", "goal", "measured"), "lll", goals))
    parts += [_section(result) for result in results]
    return "\n".join(parts)


def _section(result: Result) -> str:
    name = title(result)
    loads = [turn.load for way in result.ways for turn in way.turns]
    rounds = max((len(way.turns) for way in result.ways), default=0)
    versions = ", ".join(f"{one} {number}" for one, number in result.versions.items())
    lines = [f"## {name}", ""]
    if result.ways:
        headings = ("way", "wall s", "ratio", "client CPU s", "ratio", "server CPU s", "requests")
        lines += [f"![{name}]({CHARTS}/{result.name()}.svg)", ""]
        lines += [_table(headings, "l", list(_rows(result)))]
    lines += [f"- {WAYS.get(key, key)}: not measured: {reason}" for key, reason in result.skipped.items()]
    load = f", load {min(loads):.1f} to {max(loads):.1f}" if loads else ""
    lines += [
        f"`{result.command}`, {result.date}; {rounds} rounds; {result.machine}{load}. Versions: {versions}.",
        "",
    ]
    return "\n".join(lines)


def _rows(result: Result) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a table; ratios are to the first way."""
    base = result.ways[0]
    for way in result.ways:
        yield (
            WAYS[way.key],
            _spread([turn.wall_s for turn in way.turns], way.wall_s()),
            f"{way.wall_s() / base.wall_s():.2f}",
            _spread([turn.client_cpu_s for turn in way.turns], way.client_cpu_s()),
            f"{way.client_cpu_s() / base.client_cpu_s():.2f}",
            f"{way.server_cpu_s():.2f}" if way.server_cpu_s() else "",
            _requests(way),
        )


def _requests(way: Way) -> str:
    if not way.requests:
        return ""
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(way.requests.items()))
    return f"{sum(way.requests.values()):,} ({kinds})"


def _spread(values: Sequence[float], middle: float) -> str:
    return f"{middle:.2f} ({min(values):.2f} to {max(values):.2f})"


def _table(headings: Sequence[str], left: str, cells: Sequence[Sequence[str]]) -> str:
    """Return a table; as many columns as `left` has letters are aligned to the left."""
    rule = [
        ":---" if number < len(left) or heading == "measured" else "---:"
        for number, heading in enumerate(headings)
    ]
    lines = [headings, rule, *cells]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
