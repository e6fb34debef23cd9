"""The page of benchmarks says what the results say."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from benchmarks.peers import results
from benchmarks.peers.results import Result, Turn, Way
from benchmarks.report.__main__ import DOCS
from benchmarks.report.goals import TIMES
from benchmarks.report.page import CHARTS, files


def turns(*walls_s: float) -> list[Turn]:
    return [Turn(wall_s=wall_s, client_cpu_s=2 * wall_s, server_cpu_s=0.5, load=0.1) for wall_s in walls_s]


def result(**ways: list[Turn]) -> Result:
    return Result(
        work="commit",
        command="python -m benchmarks.peers commit",
        date="2026-11-25",
        machine="2 cores",
        versions={"Python": "3.11"},
        rows=0,
        files=1000,
        latency_ms=0,
        ways=[Way(key=key.replace("_", "-"), turns=taken) for key, taken in ways.items()],
    )


def test_the_page_and_its_charts_are_what_the_results_give() -> None:
    charts = {chart.relative_to(DOCS).as_posix() for chart in (DOCS / CHARTS).glob("*")}
    expected = files(results.load())

    assert {name: (DOCS / name).read_text() for name in expected} == expected, (
        "run `python -m benchmarks.report`"
    )
    assert charts == set(expected) - {"benchmarks.md"}


def test_a_goal_is_judged_by_the_medians_and_shows_the_spread_of_rounds() -> None:
    page = files([result(lockgate=turns(1.0, 1.2, 3.0), bare_crt=turns(1.0, 1.2, 1.5))])["benchmarks.md"]

    assert f"| ≤ 1.10 {TIMES} completions alone, bare AWS CRT | 1.00 {TIMES} (1.00 to 2.00) |" in page
    assert "**missed**" not in page


def test_a_missed_goal_is_called_missed() -> None:
    page = files([result(lockgate=turns(2.0), bare_crt=turns(1.0))])["benchmarks.md"]

    assert f"**missed**: 2.00 {TIMES}" in page


def test_a_chart_is_xml_with_a_bar_for_each_way_of_a_length_that_is_its_time() -> None:
    measured = result(lockgate=turns(2.0), bare_crt=turns(1.0))
    chart = ET.fromstring(files([measured])[f"{CHARTS}/commit-1000-files.svg"])
    bars = [
        float(bar.attrib["width"])
        for bar in chart.iter("{http://www.w3.org/2000/svg}rect")
        if bar.attrib["height"] == "20"
    ]

    assert bars == [pytest.approx(2 * bars[1], abs=0.2), bars[1]]


def test_a_saved_result_is_loaded_again_without_folders_of_the_machine(tmp_path: Path) -> None:
    command = results.command(["commit", "--rounds", "1", "--results", "/somewhere", "--jars", "/jars"])
    results.save(result(lockgate=turns(1.0)), tmp_path)

    assert [one.name() for one in results.load(tmp_path)] == ["commit-1000-files"]
    assert command == "python -m benchmarks.peers commit --rounds 1"
