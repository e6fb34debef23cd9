"""Tests of the operator for journal maintenance: it verifies a checkpoint before it prunes."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from lockgate.operators.journal import JournalCheckpointOperator
from lockgate.storage_core.errors import SafeModeError
from lockgate.storage_core.journal import Journal
from lockgate.storage_core.journal.checkpoint.checkpoints import open_checkpoints
from lockgate.storage_core.journal.checkpoint.restore import restore_in_place
from lockgate.storage_core.journal.process_journal import configured_journal
from lockgate.storage_core.journal.safe_mode import add_operators_reason
from lockgate.storage_core.settings import Settings, load_settings
from tests.support.airflow.task_run import TaskRun
from tests.support.journal.checkpoints import take


@pytest.fixture
def journal(settings: Settings) -> Journal:
    """Yield the configured journal with three entries."""
    opened = configured_journal(settings)
    assert opened is not None
    for name in "abc":
        opened.apply(take(name))
    return opened


def look_after(**options: Any) -> Any:
    return JournalCheckpointOperator(task_id="checkpoint", **options).execute(TaskRun().context())


def kept(journal: Journal) -> int:
    with journal.reading() as reading:
        return len(reading.entries(0, 100))


def test_entries_in_a_verified_checkpoint_are_pruned(journal: Journal, settings: Settings) -> None:
    assert look_after() == {
        "checkpoint": "1.3",
        "folded_entries": 3,
        "pruned_entries": 3,
        "forgotten_requests": 0,
        "deleted_checkpoints": 0,
    }
    assert kept(journal) == 0
    assert len(open_checkpoints(settings).verified()) == 1

    journal.apply(take("d"))
    assert look_after()["folded_entries"] == 1


def test_each_journal_has_a_checkpoint_in_its_own_store(
    journal: Journal, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup = settings.home / "backup"
    monkeypatch.setenv("LOCKGATE_JOURNALS", f'{{"logs": {{"checkpoint_url": "file://{backup}"}}}}')
    logs = load_settings().for_journal("logs")
    other = configured_journal(logs)
    assert other is not None
    other.apply(take("x"))
    done = look_after()
    assert (done["checkpoint"], done["logs.checkpoint"]) == ("1.3", "1.1")
    assert (kept(journal), kept(other)) == (0, 0)
    assert open_checkpoints(logs).store.url == f"file://{backup}"
    assert len(open_checkpoints(logs).verified()) == len(open_checkpoints(settings).verified()) == 1


def test_a_reason_for_safe_mode_is_dropped_after_the_verification(journal: Journal) -> None:
    add_operators_reason(journal, "maintenance")

    assert look_after(leave_safe_mode="operator", report_only=True)["remaining_reasons"] == 1
    assert look_after(leave_safe_mode="operator") == {
        "checkpoint": "1.3",
        "folded_entries": 3,
        "remaining_reasons": 0,
    }
    assert kept(journal) == 3
    assert look_after()["pruned_entries"] == 3


def test_an_inconsistent_journal_fails_the_task_without_retry_and_is_not_pruned(
    journal: Journal,
) -> None:
    with journal.database.write() as connection:
        connection.exec_driver_sql("DELETE FROM lease WHERE resource = 'b'")

    with pytest.raises(AirflowFailException, match="the tables: lease b is missing"):
        look_after()

    assert kept(journal) == 3


def test_in_safe_mode_the_checkpoint_is_taken_and_nothing_is_pruned(
    journal: Journal, settings: Settings
) -> None:
    restore_in_place(journal, open_checkpoints(settings))

    with pytest.raises(SafeModeError, match="leave-safe-mode"):
        look_after()

    assert kept(journal) == 3
    assert len(open_checkpoints(settings).verified()) == 1


def test_without_a_journal_the_task_is_skipped(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKGATE_JOURNAL_URL", "none")

    with pytest.raises(AirflowSkipException, match="no journal"):
        look_after()
