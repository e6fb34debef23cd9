"""The lists of scenarios and of hostile tests stay up to date: every test that they name exists."""

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


def hostile() -> list[str]:
    """Return the numbered parts of the page about hostile tests."""
    text = (REPOSITORY / "docs" / "internals" / "hostile-tests.md").read_text()
    return re.findall(r"^### (\d+\. .*?)(?=^##|\Z)", text, flags=re.MULTILINE | re.DOTALL)


def test_every_hostile_test_is_in_the_file_that_the_page_names() -> None:
    named = {found for part in hostile() for found in re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", part)}
    missing = [
        f"{file}::{name}"
        for file, name in sorted(named)
        if not (REPOSITORY / file).exists()
        or not re.search(rf"^\s*def {name}\(", (REPOSITORY / file).read_text(), re.MULTILINE)
    ]
    assert len(named) > 70
    assert missing == []


def test_every_hostile_test_says_what_happened_before_and_where_else_it_could() -> None:
    parts = hostile()
    assert [int(part.partition(".")[0]) for part in parts] == list(range(1, 28))
    fields = ("- Tests: `tests/", "- Before: ", "- Siblings: ")
    assert [part.partition("\n")[0] for part in parts if not all(field in part for field in fields)] == []
