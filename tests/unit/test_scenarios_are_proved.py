"""The lists of scenarios, hostile tests and HDFS sections are true: every test that they name exists."""

from __future__ import annotations

import ast
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


HDFS_SECTIONS = [
    "Requirements",
    "Stale Replica Deletion",
    "Failure Modes and Recovery",
    "The Writer",
    "The Reader",
    "New Types of Transactions",
    "Lease recovery",
    "BlockId allocations and Client flushes",
    "Namenode Restarts and Checkpoints",
    "Truncates",
    "File Deletions and Renames",
    "Datanodes",
    "Periodic Verification of Datanodes",
    "Cluster Rebalancing",
    "Upgrades",
    "GenerationStamp vs Larger BlockIds",
]


def test_every_section_of_the_design_of_hdfs_has_a_file_of_tests_that_names_it() -> None:
    text = (REPOSITORY / "docs" / "internals" / "hdfs-append.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| `(test_\w+\.py)` \| ([^|]+) \|$", text, flags=re.MULTILINE)
    assert [section for section, _, _ in rows] == HDFS_SECTIONS
    folder = REPOSITORY / "tests" / "unit" / "files" / "hdfs_append"
    assert {file for _, file, _ in rows} == {path.name for path in folder.glob("test_*.py")}
    for section, file, _ in rows:
        module = ast.parse((folder / file).read_text())
        assert f'"{section}"' in (ast.get_docstring(module) or ""), file
        tests = [one for one in module.body if isinstance(one, ast.FunctionDef) and one.name[:5] == "test_"]
        assert [one.name for one in tests if not (ast.get_docstring(one) or "").startswith("HDFS: ")] == []
        assert tests
