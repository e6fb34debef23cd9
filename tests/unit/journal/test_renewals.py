"""Renewals in one row a holder: which leases they keep alive, and how overdue ones are found."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import event, select, text

from lockgate.storage_core.errors import LeaseHeldError
from lockgate.storage_core.journal import Journal, Leases, LeaseState, Stamp, open_journal
from lockgate.storage_core.journal.checkpoint import prune as prune_module
from lockgate.storage_core.journal.database.schema import HOLDER
from lockgate.storage_core.journal.entries.lease_entries import Lease, is_overdue
from lockgate.storage_core.journal.leases.lease import overdue_leases
from tests.support.commit.destination import ManualClock
from tests.support.journal.checkpoints import JournalWorld, take
from tests.support.journal.lease_states import lease_states

SOFT_S, HARD_S = 30.0, 120.0


def take_all(leases: Leases, holder: str, *resources: str) -> dict[str, Stamp]:
    return {
        name: leases.take(name, holder, purpose="take over", soft_s=SOFT_S, hard_s=HARD_S)
        for name in resources
    }


def holders(journal: Journal) -> dict[str, float]:
    with journal.database.snapshot() as connection:
        return {row.holder: row.renewed_s for row in connection.execute(select(HOLDER))}


def test_a_renewal_of_many_leases_changes_one_row(leases: Leases, clock: ManualClock) -> None:
    held = take_all(leases, "me", "a", "b", "c")
    changed: list[str] = []

    def note(*call: object) -> None:
        if str(call[2]).startswith(("UPDATE", "INSERT", "DELETE")):
            changed.append(str(call[2]).replace("INSERT INTO", "UPDATE").split()[1])

    clock.sleep(SOFT_S)
    event.listen(leases.journal.database._engine, "before_cursor_execute", note)
    assert leases.renew("me", held) == {}

    assert changed == ["holder"]
    assert holders(leases.journal) == {"me": clock.now}
    assert set(lease_states(leases.journal).values()) == {LeaseState.HELD}


def test_a_lease_that_its_holder_gave_up_lapses_although_it_renews_others(
    leases: Leases, clock: ManualClock
) -> None:
    held = take_all(leases, "me", "kept", "given up")
    clock.sleep(10)
    assert leases.renew("me", held) == {}
    last_s = clock.now
    del held["given up"]
    for _ in range(3):
        clock.sleep(HARD_S / 3)
        assert leases.renew("me", held) == {}

    view = leases.look("given up")

    assert view is not None
    assert (view.state, view.lease.renewed_s) == (LeaseState.HARD, last_s)
    assert lease_states(leases.journal)["kept"] is LeaseState.HELD


def test_a_lease_that_a_renewal_did_not_name_is_kept_by_the_next_one_that_does(
    leases: Leases, clock: ManualClock
) -> None:
    """A renewal may begin after a lease was taken, and before its holder knows of it."""
    held = take_all(leases, "me", "a", "b")
    leases.renew("me", {"a": held["a"]})
    clock.sleep(HARD_S)
    assert leases.renew("me", held) == {}
    clock.sleep(HARD_S - 1)
    assert leases.renew("me", held) == {}
    assert lease_states(leases.journal) == {"a": LeaseState.HELD, "b": LeaseState.HELD}


def test_a_new_lease_of_a_holder_is_not_renewed_by_its_earlier_renewals(
    leases: Leases, clock: ManualClock
) -> None:
    held = take_all(leases, "me", "a")
    leases.renew("me", held)
    clock.sleep(HARD_S)
    held |= take_all(leases, "me", "b")
    clock.sleep(SOFT_S)
    assert lease_states(leases.journal) == {"a": LeaseState.HARD, "b": LeaseState.SOFT}


def test_every_renewal_is_seen_in_every_lease_wherever_the_clock_goes(
    leases: Leases, clock: ManualClock
) -> None:
    held = take_all(leases, "me", "a")
    leases.renew("me", held)
    clock.jump(1000)
    held |= take_all(leases, "me", "b")
    clock.jump(-900)
    for _ in range(2):
        before = [leases.look(name) for name in held]
        assert leases.renew("me", held) == {}
        for old, name in zip(before, held, strict=True):
            new = leases.look(name)
            assert old is not None
            assert new is not None
            assert new.lease.renewed_s > old.lease.renewed_s
            with pytest.raises(LeaseHeldError):
                leases.take(name, "you", purpose="recover", soft_s=1, hard_s=1, seen=old.lease)


def ways(leases: Leases, clock: ManualClock) -> None:
    """Make leases in every state, of holders that renew and of others."""
    alive = take_all(leases, "alive", "kept", "given up", "suspended", "suspended too long", "free")
    take_all(leases, "dead before its first renewal", "early")
    dead = take_all(leases, "dead", "late")
    assert leases.renew("alive", alive) == {}
    assert leases.renew("dead", dead) == {}
    leases.suspend("suspended", alive["suspended"], 10 * HARD_S)
    leases.suspend("suspended too long", alive["suspended too long"], 1)
    leases.free("free", alive["free"])
    clock.sleep(HARD_S + 1)
    assert leases.renew("alive", {"kept": alive["kept"]}) == {}
    leases.take("early", "recoverer", purpose="recover", soft_s=SOFT_S, hard_s=HARD_S)
    take_all(leases, "new", "just taken")


@pytest.mark.parametrize("later_s", [0.0, HARD_S, -10 * HARD_S])
def test_the_overdue_leases_are_those_of_holders_that_do_not_renew(
    leases: Leases, clock: ManualClock, later_s: float
) -> None:
    ways(leases, clock)
    clock.jump(later_s)
    with leases.journal.reading() as reading:
        found = [lease.resource for lease in overdue_leases(reading, clock.now, HARD_S)]
        overdue = [lease.resource for lease in reading.where(Lease, {}) if is_overdue(lease, clock.now)]
    assert sorted(found) == sorted(overdue)
    if not later_s:
        assert sorted(found) == ["free", "given up", "late", "suspended too long"]


def test_overdue_leases_are_found_by_indexes(tmp_path: Path) -> None:
    with open_journal(f"sqlite:///{tmp_path / 'journal.db'}") as journal, journal.reading() as reading:
        asked: list[tuple[str, tuple[object, ...]]] = []
        event.listen(
            journal.database._engine,
            "before_cursor_execute",
            lambda *call: asked.append((call[2], call[3])),
        )
        assert list(overdue_leases(reading, 1.0, HARD_S)) == []
        plans = [
            step.detail
            for statement, parameters in list(asked)
            for step in reading.connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
        ]
    assert len(asked) >= 5
    assert [step for step in plans if step.startswith("SCAN")] == []
    of_leases = [step for step in plans if " lease " in step]
    assert all(step.startswith("SEARCH lease USING INDEX lease_by_") for step in of_leases)


def test_a_holder_whose_row_is_missing_renews(leases: Leases, clock: ManualClock) -> None:
    """A restored journal has no rows of holders."""
    held = take_all(leases, "me", "a")
    with leases.journal.database.write() as connection:
        connection.execute(text("DELETE FROM holder"))
    clock.sleep(HARD_S)
    assert leases.renew("me", held) == {}
    assert holders(leases.journal) == {"me": clock.now}
    assert lease_states(leases.journal) == {"a": LeaseState.HELD}


def test_pruning_deletes_the_rows_of_old_holders_without_leases(
    journals: JournalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prune_module, "SLICE", 2)
    ended = [f"ended {number}" for number in range(3)]
    journals.apply(take("a", holder="dead"), *(take(name, holder=name) for name in ended))
    with journals.open() as journal:
        for name in ended:
            leases = Leases(journal)
            view = leases.look(name)
            assert view is not None
            leases.renew(name, {name: view.lease.stamp})
            leases.take(name, "heir", purpose="take over", soft_s=SOFT_S, hard_s=HARD_S)
        journals.checkpoint()
        journals.verify()
        journals.prune()
        assert set(holders(journal)) == {"dead", "heir", *ended}
        journals.clock.sleep(prune_module.DEAD_HOLDER_S + 1)
        journals.prune()
        assert set(holders(journal)) == {"dead", "heir"}
