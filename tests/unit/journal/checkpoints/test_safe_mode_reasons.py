"""Safe mode has a set of reasons: each is left on its own, and the last one ends safe mode."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import delete, func, insert, select

from lockgate.storage_core.errors import InvalidInputError, SafeModeError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.namespace.rows import DamagedReplica, ReportedVolume, WrittenLength
from lockgate.storage_core.journal import Journal, Leases, LeaseState, open_journal
from lockgate.storage_core.journal.checkpoint.checkpoints import open_checkpoints
from lockgate.storage_core.journal.checkpoint.restore import restore_in_place
from lockgate.storage_core.journal.database.schema import HOLDER
from lockgate.storage_core.journal.entries.family import known_families
from lockgate.storage_core.journal.safe_mode import (
    add_operators_reason,
    leave_safe_mode,
    refuse_in_safe_mode,
)
from lockgate.storage_core.settings import load_settings
from tests.support.cli import Run
from tests.support.commit.destination import ManualClock
from tests.support.journal.lease_states import lease_states

WHY = "the disk of the volumes is replaced"


@pytest.fixture
def journal(journal_url: str, tmp_path: Path) -> Iterator[Journal]:
    """Return a journal with a lease and two reasons for safe mode."""
    with open_journal(journal_url, clock=ManualClock()) as journal:
        Leases(journal).take("a", "h", purpose="write", soft_s=30, hard_s=120)
        restore_in_place(journal, open_checkpoints(load_settings(home=tmp_path / "home")))
        add_operators_reason(journal, WHY)
        yield journal


def reasons(journal: Journal) -> list[str]:
    return [one.reason for one in journal.status().safe_reasons]


def test_safe_mode_ends_with_its_last_reason_and_rearms_the_leases_then(journal: Journal) -> None:
    journal.clock.sleep(1_000)
    assert leave_safe_mode(journal, "restored") == 0
    assert reasons(journal) == ["operator"]
    assert lease_states(journal) == {"a": LeaseState.HARD}
    with pytest.raises(SafeModeError, match=f"operator: {WHY}"):
        refuse_in_safe_mode(journal, "pruning")
    with pytest.raises(SafeModeError):
        Leases(journal).take("a", "r", purpose="recover", soft_s=1, hard_s=2)

    assert leave_safe_mode(journal) == 1  # there is only one
    assert (reasons(journal), journal.status().safe_since_s) == ([], None)
    assert lease_states(journal) == {"a": LeaseState.HELD}
    assert leave_safe_mode(journal, "operator") is None


@pytest.mark.parametrize("reason", ["", "volumes"])
def test_a_reason_that_is_unknown_or_not_named_is_refused_with_the_list(
    journal: Journal, reason: str
) -> None:
    with pytest.raises(InvalidInputError, match=f"nothing was changed.*operator: {WHY}; restored: the data"):
        leave_safe_mode(journal, reason)
    assert reasons(journal) == ["operator", "restored"]


def test_the_same_reason_twice_is_one_reason_with_the_newer_text(journal: Journal) -> None:
    journal.clock.sleep(5)
    add_operators_reason(journal, "another one")
    operators, restored = journal.status().safe_reasons
    assert (operators.text, operators.since_s - restored.since_s) == ("another one", 5)
    assert journal.status().safe_since_s == restored.since_s
    leave_safe_mode(journal, "restored")
    assert journal.status().safe_since_s == operators.since_s


def test_two_operators_who_each_leave_a_reason_at_once_rearm_the_leases(
    journal: Journal, journal_url: str
) -> None:
    other_left: list[int | None] = []

    def meanwhile(point: str) -> None:
        if point == "safe-mode.journal-leave.before" and not other_left:
            other_left.append(0)
            with open_journal(journal_url, clock=journal.clock) as other:
                other_left[0] = leave_safe_mode(other, "operator")

    journal.clock.sleep(1_000)
    FAILPOINTS.observer = meanwhile
    try:
        assert leave_safe_mode(journal, "restored") == 1
    finally:
        FAILPOINTS.observer = None
    assert other_left == [0]
    assert journal.status().safe_since_s is None
    assert lease_states(journal) == {"a": LeaseState.HELD}


def test_soft_tables_are_empty_after_a_restore_and_kept_by_an_operator(
    journal: Journal, tmp_path: Path
) -> None:
    def renewals() -> int:
        with journal.reading() as reading:
            return reading.connection.execute(select(func.count()).select_from(HOLDER)).scalar_one()

    assert set(known_families().soft_rows) == {ReportedVolume, DamagedReplica, WrittenLength}
    with journal.database.write() as connection:
        connection.execute(delete(HOLDER))
        connection.execute(insert(HOLDER).values(journal=journal.name, holder="h", renewed_s=1.0))
    add_operators_reason(journal, WHY)
    assert renewals() == 1
    restore_in_place(journal, open_checkpoints(load_settings(home=tmp_path / "home")))
    assert renewals() == 0


def test_the_command_line_enters_shows_and_leaves_each_reason(
    journal: Journal, journal_url: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKGATE_JOURNAL_URL", journal_url)
    status = run("journal", "status").stdout
    assert f"operator: {WHY}; restored: the database came back" in " ".join(status.split())
    shown = json.loads(run("journal", "status", "--json").stdout)["status"]["safe_reasons"]
    assert [one["reason"] for one in shown] == ["operator", "restored"]

    refused = run("journal", "leave-safe-mode")
    assert (refused.exit_code, "safe mode has several reasons" in refused.stderr) == (2, True)
    left = run("journal", "leave-safe-mode", "restored").stdout
    assert left == f"the journal is still in safe mode: operator: {WHY}\n"
    entered = run("journal", "enter-safe-mode", "one more hour").stdout
    assert entered == "the journal is in safe mode: operator: one more hour\n"
    left = run("journal", "leave-safe-mode").stdout
    assert left == "left safe mode; restarted the time limits of 1 leases\n"
