"""The list of scenarios in the documentation stays up to date: every test that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def scenarios() -> dict[str, list[tuple[str, list[str]]]]:
    """Return the documentation's lines by their heading, each with the tests that it names."""
    text = (REPOSITORY / "docs" / "internals" / "scenarios.md").read_text()
    _, *parts = re.split(r"^## ", text, flags=re.MULTILINE)
    by_heading = {}
    for part in parts:
        heading, _, body = part.partition("\n")
        lines = re.findall(r"^- (.*(?:\n  .*)*)", body, flags=re.MULTILINE)
        by_heading[heading] = [(line, re.findall(r"`(test_\w+)`", line)) for line in lines]
    return by_heading


def test_every_test_named_in_the_scenarios_exists() -> None:
    sources = (path.read_text() for path in (REPOSITORY / "tests").rglob("test_*.py"))
    there = {name for source in sources for name in re.findall(r"^\s*def (test_\w+)\(", source, re.MULTILINE)}
    named = [name for lines in scenarios().values() for _, names in lines for name in names]
    assert len(named) > 100
    assert sorted(set(named) - there) == []


def test_every_scenario_names_its_proof() -> None:
    assert [line for lines in scenarios().values() for line, names in lines if not names] == []
