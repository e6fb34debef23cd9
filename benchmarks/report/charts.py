"""A bar chart as SVG: wall time with its spread, and CPU time of client and server, for each way."""

from __future__ import annotations

from html import escape
from typing import Final

from benchmarks.peers.results import Result, Way
from benchmarks.report.titles import WAYS, title

_WIDTH: Final = 860
_LEFT: Final = 270
_RIGHT: Final = 70
_TOP: Final = 64
_ROW: Final = 46
_WALL, _CLIENT, _SERVER = "#2f6fab", "#8a8f98", "#cfd3d9"


def chart(result: Result) -> str:
    """Return the chart of a result."""
    longest = max(
        max(*(turn.wall_s for turn in way.turns), way.client_cpu_s() + way.server_cpu_s())
        for way in result.ways
    )
    per_s = (_WIDTH - _LEFT - _RIGHT) / longest
    height = _TOP + _ROW * len(result.ways) + 8
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="13" role="img">',
        f"<title>{escape(title(result))}</title>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(12, 24, title(result), size=15),
        *_legend(),
    ]
    for number, way in enumerate(result.ways):
        lines += _bars(way, _TOP + _ROW * number, per_s)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _bars(way: Way, top: int, per_s: float) -> list[str]:
    walls = [turn.wall_s for turn in way.turns]
    wall, client, server = (
        seconds * per_s for seconds in (way.wall_s(), way.client_cpu_s(), way.server_cpu_s())
    )
    least, greatest = (_LEFT + seconds * per_s for seconds in (min(walls), max(walls)))
    middle = top + 10
    return [
        _text(_LEFT - 10, top + 20, WAYS[way.key], anchor="end"),
        _bar(_LEFT, top, wall, 20, _WALL),
        f'<path d="M{least:.1f} {middle}H{greatest:.1f}M{least:.1f} {middle - 5}v10'
        f'M{greatest:.1f} {middle - 5}v10" stroke="#101418" fill="none"/>',
        _text(max(_LEFT + wall, greatest) + 6, top + 15, f"{way.wall_s():.2f} s"),
        _bar(_LEFT, top + 22, client, 8, _CLIENT),
        _bar(_LEFT + client, top + 22, server, 8, _SERVER),
    ]


def _legend() -> list[str]:
    lines, x = [], _LEFT
    for colour, word, width in (
        (_WALL, "wall time, least to greatest", 220),
        (_CLIENT, "CPU time of the client", 180),
        (_SERVER, "of the S3 server", 0),
    ):
        lines += [_bar(x, 38, 12, 12, colour), _text(x + 18, 49, word)]
        x += width
    return lines


def _bar(x: float, y: float, width: float, height: int, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}" fill="{colour}"/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 13) -> str:
    return (
        f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}" font-size="{size}" fill="#101418">'
        f"{escape(text)}</text>"
    )
