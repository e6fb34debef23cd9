"""The goals: ratios of one way to another, in one run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple

from benchmarks.peers.results import Result, Way
from benchmarks.report.titles import WAYS, title

Figure = Literal["wall time", "client's CPU time", "requests"]

TIMES: Final = "\N{MULTIPLICATION SIGN}"
MANY_FILES: Final = 1000
"""A write of so many files is judged by its own goal."""


class Goal(NamedTuple):
    """One goal.

    Attributes:
        work: Works that it is for.
        way: Way that is judged.
        figure: Figure of it.
        limits: Greatest ratio to each of some other ways; one is enough.
    """

    work: Literal["write", "write of many files", "commit", "commit with latency"]
    way: str
    figure: Figure
    limits: dict[str, float]


GOALS: Final = (
    Goal("write", "lockgate-spark-local", "wall time", {"spark-v1": 1.03}),
    Goal("write", "lockgate-direct-local", "wall time", {"spark-v1": 1.25, "dropped": 1.1}),
    Goal("write", "lockgate-spark-s3", "wall time", {"s3a-magic": 0.82, "s3a-magic-tuned": 0.9}),
    Goal("write", "lockgate-spark-s3", "client's CPU time", {"s3a-magic-tuned": 0.88}),
    Goal("write", "lockgate-spark-s3", "requests", {"s3a-magic": 1.0}),
    Goal("write", "lockgate-staged-s3", "wall time", {"s3a-magic": 0.8}),
    Goal("write", "lockgate-staged-s3", "client's CPU time", {"s3a-magic": 0.8}),
    Goal("write", "lockgate-direct-s3", "wall time", {"s3a-magic": 0.95, "dropped": 1.1}),
    Goal("write", "lockgate-staged-s3", "requests", {"s3a-magic": 1.0}),
    Goal("write", "lockgate-direct-s3", "requests", {"s3a-magic": 1.0}),
    Goal("write of many files", "lockgate-spark-local", "wall time", {"spark-v2": 1.0}),
    Goal("commit", "lockgate", "wall time", {"bare-crt": 1.1}),
    Goal("commit", "lockgate", "requests", {"s3a-magic": 1.0}),
    Goal("commit with latency", "lockgate", "wall time", {"s3a-magic": 0.6}),
)


def rows(results: Sequence[Result]) -> Iterator[tuple[str, str, str, str]]:
    """Yield for each goal and result that measured it: work, way, goals, and what was measured."""
    for result in results:
        ways = {way.key: way for way in result.ways}
        for goal in GOALS:
            bases = [base for base in goal.limits if base in ways]
            if goal.work != _work(result) or goal.way not in ways or not bases:
                continue
            ratios = {base: _ratio(ways[goal.way], ways[base], goal.figure) for base in bases}
            limits = " or ".join(f"{goal.limits[base]:.2f} {TIMES} {WAYS[base]}" for base in bases)
            met = any(ratios[base][0] <= goal.limits[base] for base in bases)
            measured = ", ".join(_spread(*ratios[base]) for base in bases)
            yield (
                title(result),
                f"{WAYS[goal.way]}: {goal.figure}",
                f"≤ {limits}",
                measured if met else f"**missed**: {measured}",
            )


def _work(result: Result) -> str:
    if result.work == "commit":
        return "commit with latency" if result.latency_ms else "commit"
    return "write of many files" if result.files >= MANY_FILES else "write"


def _ratio(way: Way, base: Way, figure: Figure) -> tuple[float, float, float]:
    """Return the ratio of medians, and the least and greatest ratio of two turns of one round."""
    if figure == "requests":
        ratio = sum(way.requests.values()) / sum(base.requests.values())
        return ratio, ratio, ratio
    if figure == "wall time":
        pairs = [(one.wall_s, two.wall_s) for one, two in zip(way.turns, base.turns, strict=True)]
        middle = way.wall_s() / base.wall_s()
    else:
        pairs = [(one.client_cpu_s, two.client_cpu_s) for one, two in zip(way.turns, base.turns, strict=True)]
        middle = way.client_cpu_s() / base.client_cpu_s()
    each = [one / two for one, two in pairs]
    return middle, min(each), max(each)


def _spread(middle: float, least: float, greatest: float) -> str:
    if least == greatest:
        return f"{middle:.2f} {TIMES}"
    return f"{middle:.2f} {TIMES} ({least:.2f} to {greatest:.2f})"
