"""`lockgate committers`, and the documentation's table, which says the same."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from lockgate.storage_core.cli.app import build
from lockgate.storage_core.cli.committers import COLUMNS, promises
from lockgate.storage_core.commit.committers import COMMITTERS

DOCUMENT = Path(__file__).parents[2] / "docs" / "committers.md"


def test_the_command_tells_of_every_committer_what_it_promises() -> None:
    answer = CliRunner().invoke(build(), ["committers", "--json"])
    assert answer.exit_code == 0
    listed = {row["name"]: row for row in json.loads(answer.output)}
    assert set(listed) == set(COMMITTERS)
    assert listed["magic"]["visible at"] == "job commit"
    table = CliRunner().invoke(build(), ["committers"]).output
    assert all(name in table for name in COMMITTERS)


def test_the_documentations_table_is_what_the_classes_say() -> None:
    rows = [COLUMNS, tuple("---" for _ in COLUMNS), *promises()]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    assert table in DOCUMENT.read_text()
