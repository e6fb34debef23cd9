"""Control characters in stored text are escaped on a terminal, in a table and in a log."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockgate.storage_core.commit.leases.job_lease import JobLeaseState
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.commit.recovery.decision_table import RecoveryAction
from lockgate.storage_core.commit.recovery.recover import RecoveryResult
from lockgate.storage_core.ids import JobId
from lockgate.storage_core.printable import printable
from lockgate.storage_core.settings import Settings
from tests.support.cli import Run, lapsed_job, open_written_job

TRICK = "\x1b[2J\x1b]0;yours\x07"
SHOWN = r"\x1b[2J\x1b]0;yours\x07"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (TRICK, SHOWN),
        ("a\nb\rc\td", r"a\nb\rc\td"),
        ("\u202efdp.exe\u2028", r"\u202efdp.exe\u2028"),
        ("\x9b31m \udc80", r"\x9b31m \udc80"),
        ("größe 日本\u3000語 🙂 a\\x1b", "größe 日本\u3000語 🙂 a\\x1b"),
    ],
)
def test_control_characters_are_escaped_and_letters_are_not(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown


def test_a_folder_name_found_by_a_scan_is_shown_with_control_characters_escaped(
    run: Run, tmp_path: Path, settings: Settings
) -> None:
    lapsed_job(str(tmp_path / "lake" / f"sales{TRICK}"), settings)

    shown = run("jobs", "recover", "--scan", str(tmp_path / "lake"))

    assert f"sales{SHOWN}" in shown.stdout
    assert "\x1b" not in shown.output


def test_a_description_is_shown_on_its_own_line(run: Run, destination: str, settings: Settings) -> None:
    job = open_written_job(destination, settings)
    job.abort(f"no\nphase  committed{TRICK}")

    shown = run("jobs", "show", destination, job.job_id)

    assert rf"no\nphase  committed{SHOWN}" in shown.stdout
    assert "\nphase  committed" not in shown.output


def test_an_error_shows_what_it_names(run: Run) -> None:
    shown = run("jobs", "list", f"ftp{TRICK}://x?")

    assert shown.exit_code == 2
    assert "\x1b" not in shown.output


def test_a_name_in_the_operator_s_table_is_shown() -> None:
    result = RecoveryResult(
        destination=f"file:///{TRICK}",
        job_id=JobId("sales-g1"),
        found=JobPhase.OPEN,
        lease=JobLeaseState.LAPSED,
        action=RecoveryAction.ABORT,
        ended=JobPhase.FAILED,
        detail=f"line\n{TRICK}",
    )

    from lockgate.operators.recovery import summary_table

    assert f"line {SHOWN}" in summary_table([result])
    assert "\x1b" not in summary_table([result])
