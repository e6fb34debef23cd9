"""Tables in task logs: plain text, bounded in width and length."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from lockgate.operators.dag_run.log_tables import WIDTH, log_table
from lockgate.operators.jobs import JobCommitOperator, JobSetupOperator
from tests.support.airflow.task_run import TaskRun
from tests.support.commit.destination import World


def test_a_table_has_aligned_columns_and_no_escape_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")

    assert log_table(("task", "files"), [("a", 1), ("longer", None)]).splitlines() == [
        "task     files",
        "────────────────"[:14],
        "a        1",
        "longer   -",
    ]


def test_a_table_is_bounded_in_width_and_length() -> None:
    lines = log_table(("a", "b"), [("x" * 300, "y" * 5000)] * 60, most_rows=2).splitlines()

    assert max(map(len, lines)) <= WIDTH
    assert sum(line.count("x") for line in lines) == 600
    assert sum(line.count("y") for line in lines) == 1000
    assert lines[-1] == "… and 58 more"


def test_a_name_forges_no_line_no_markup_and_no_colour() -> None:
    table = log_table(("file",), [("[red]a\nb\x1b[31m",)])

    assert table.splitlines()[2:] == ["[red]a\\nb\\x1b[31m"]


def test_the_log_of_a_commit_shows_the_receipt_as_a_table(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    handle = JobSetupOperator(task_id="setup", destination=world.url).execute(TaskRun().context())

    JobCommitOperator(task_id="commit", job=handle, allow_empty=True).execute(TaskRun().context())

    page, *table = capsys.readouterr().out.rpartition("committed; its page: ")[2].splitlines()
    assert page.endswith(f"&job={quote(handle['job_id'])}")
    shown = dict(line.split(maxsplit=1) for line in table if line.strip("─ ") and line != "receipt")
    assert list(shown) == [*("destination", "job", "turn", "mode", "files", "rows", "bytes", "published")]
    assert (shown["destination"], shown["job"]) == (handle["destination"], handle["job_id"])
    assert (shown["turn"], shown["files"], shown["bytes"]) == ("1", "0 visible, 0 removed", "0")
