"""Tests of `lockgate committers` and of the equal table in the documentation."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from lockgate.storage_core.cli.root_command import COMMITTER_COLUMNS, build, committer_rows
from lockgate.storage_core.commit.committers import COMMITTERS

DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "committers.md"


def test_the_command_lists_the_guarantees_of_every_committer() -> None:
    answer = CliRunner().invoke(build(), ["committers", "--json"])
    assert answer.exit_code == 0
    listed = {row["name"]: row for row in json.loads(answer.output)}
    assert set(listed) == set(COMMITTERS)
    assert listed["magic"]["visible at"] == "job commit"
    table = CliRunner().invoke(build(), ["committers"]).output
    assert all(name in table for name in COMMITTERS)


def test_the_table_in_the_documentation_matches_the_classes() -> None:
    rows = [COMMITTER_COLUMNS, tuple("---" for _ in COMMITTER_COLUMNS), *committer_rows()]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    assert table in DOCUMENT.read_text()
