"""`lockgate journal`: status, daily maintenance, and restore of a lost database."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockgate.storage_core.errors import ConflictError, MalformedJournalError
from lockgate.storage_core.journal import Stamp, open_journal
from lockgate.storage_core.journal.write.head import EPOCH_STEP
from lockgate.storage_core.settings import Settings
from tests.support.cli import Run, document
from tests.support.journal.checkpoints import take


@pytest.fixture
def journal_url(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of the settings' journal, which has three leases."""
    url = f"sqlite:///{settings.home_dir / 'journal.db'}"
    with open_journal(url) as journal:
        for name in "abc":
            journal.apply(take(name))
    return url


@pytest.fixture
def spare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of an empty database, and name it in the settings."""
    url = f"sqlite:///{tmp_path / 'spare.db'}"
    monkeypatch.setenv("LOCKGATE_JOURNAL_URL", url)
    return url


def test_status_shows_the_state_of_the_journal(run: Run, journal_url: str) -> None:
    shown = run("journal", "status")
    seen = document(run("journal", "status", "--json"))

    assert shown.exit_code == 0
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert ["stamp", "1.3"] in lines
    assert ["safe", "mode", "no"] in lines
    assert seen["status"]["stamp"] == {"epoch": 1, "sequence": 3}
    assert seen["leases"]["held"] == 3
    assert (seen["entries"], seen["checkpoint"], seen["entries_since_checkpoint"]) == (3, None, 3)


def test_daily_maintenance_creates_a_checkpoint_verifies_it_and_prunes_to_it(
    run: Run, journal_url: str
) -> None:
    assert "checkpoint 1.3" in run("journal", "checkpoint").stdout
    assert "existed already" in run("journal", "checkpoint").stdout
    verified = run("journal", "verify").stdout.splitlines()
    assert verified[-3:] == [
        "checkpoint 1.3 is equal to their result",
        "pages and indexes were checked",
        "0 findings",
    ]

    rehearsed = run("journal", "prune").stdout
    assert "3 entries, which checkpoint 1.3 contains" in rehearsed
    assert "a dry run: nothing was pruned" in rehearsed
    assert document(run("journal", "status", "--json"))["entries"] == 3
    assert document(run("journal", "prune", "--yes", "--json"))["entries"] == 3
    assert document(run("journal", "status", "--json"))["entries"] == 0


def test_verify_of_a_wrong_journal_names_the_row_and_exits_with_3(run: Run, journal_url: str) -> None:
    with open_journal(journal_url) as journal, journal.database.write() as connection:
        connection.exec_driver_sql("DELETE FROM lease WHERE resource = 'b'")

    found = run("journal", "verify")

    assert found.exit_code == MalformedJournalError.exit_code
    assert "wrong: the tables: lease b is missing" in found.stdout
    assert len(document(run("journal", "verify", "--json"))["findings"]) == 1


def test_a_lost_database_is_restored_into_an_empty_one(
    run: Run, journal_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("journal", "checkpoint")
    spare = f"sqlite:///{tmp_path / 'spare.db'}"
    monkeypatch.setenv("LOCKGATE_JOURNAL_URL", spare)

    shown = run("journal", "restore")
    again = run("journal", "restore")

    assert shown.stdout.startswith("restored from checkpoint 1.3 and 0 entries after it\n")
    assert again.stdout.startswith("was restored before from checkpoint 1.3")
    assert "since" in run("journal", "status").stdout
    assert run("journal", "prune", "--yes").exit_code == 13
    assert (
        run("journal", "leave-safe-mode").stdout == "left safe mode; restarted the time limits of 3 leases\n"
    )
    assert run("journal", "leave-safe-mode").stdout == "the journal is not in safe mode\n"
    with open_journal(spare) as journal:
        assert journal.status().stamp == Stamp(EPOCH_STEP, 3)


def test_entries_of_the_old_database_are_replayed(run: Run, journal_url: str, spare: str) -> None:
    restored = document(run("journal", "restore", "--entries", journal_url, "--json"))

    assert (restored["entries"], restored["checkpoint"]) == (3, None)
    with open_journal(spare) as journal:
        assert journal.status().stamp == Stamp(EPOCH_STEP, 3)


def test_a_recovered_database_can_be_restored_in_place(run: Run, journal_url: str) -> None:
    assert run("journal", "restore", "--in-place").stdout.startswith(
        f"the journal is at {EPOCH_STEP}.3, in safe mode"
    )
    assert run("journal", "restore", "--in-place", "--entries", "x").exit_code == 2
    assert document(run("journal", "leave-safe-mode", "--json")) == {
        "was_in_safe_mode": True,
        "leases": 3,
        "remaining": [],
    }


@pytest.mark.parametrize("command", ["status", "checkpoint"])
def test_without_a_journal_every_command_reports_it(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("LOCKGATE_JOURNAL_URL", "none")

    refused = run("journal", command)

    assert refused.exit_code == ConflictError.exit_code
    assert "there is no journal" in refused.stderr
