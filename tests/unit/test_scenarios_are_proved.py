"""Every test exists that the list of promises or the page about HDFS names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from scripts import promises_page

REPOSITORY = Path(__file__).parents[2]


def names_of_tests() -> set[str]:
    sources = (path.read_text() for path in (REPOSITORY / "tests").rglob("test_*.py"))
    return {name for source in sources for name in re.findall(r"^\s*def (test_\w+)\(", source, re.MULTILINE)}


def test_every_promise_is_proved_by_names_of_tests() -> None:
    there = names_of_tests()
    listed = [
        (promise, names) for rows in promises_page.promises().values() for promise, names in rows.items()
    ]
    gone = [f"{name}: {promise}" for promise, names in listed for name in names if name not in there]
    unproved = [promise for promise, names in listed if not names]
    assert len(listed) > 100
    assert (gone, unproved) == ([], []), (
        "in tests/promises.toml, name the test that proves the promise now, or remove the promise, "
        "and run `make docs`"
    )


def test_the_page_of_promises_is_what_make_docs_writes() -> None:
    assert promises_page.PAGE.read_text() == promises_page.page(), "run `make docs`"


def test_the_page_about_the_scaling_of_hdfs_names_names_of_tests() -> None:
    page = (REPOSITORY / "docs" / "internals" / "hdfs-append.md").read_text()
    named = set(re.findall(r"`(test_\w+)`", page))
    assert len(named) > 10
    assert named <= names_of_tests()


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
