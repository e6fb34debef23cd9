"""Safe mode: after a restore nothing is recovered or pruned until an operator leaves safe mode."""

from __future__ import annotations

import pytest

from lockgate.storage_core.errors import SafeModeError
from lockgate.storage_core.journal import Leases, LeaseState, Stamp, safe_mode
from lockgate.storage_core.journal.entries.lease_entries import Lease, SuspendLease
from lockgate.storage_core.journal.safe_mode import leave_safe_mode, refuse_in_safe_mode
from lockgate.storage_core.journal.write.head import EPOCH_STEP
from tests.support.journal.checkpoints import JournalWorld, take
from tests.support.journal.lease_states import lease_states


def test_in_safe_mode_nothing_is_recovered_or_pruned_and_writes_continue(journals: JournalWorld) -> None:
    journals.live(1)
    journals.checkpoint()
    journals.verify()
    journals.restore()
    journals.clock.sleep(100_000)

    with journals.open(journals.spare_url) as journal:
        with pytest.raises(SafeModeError):
            Leases(journal).take("job:1-a", "r", purpose="recover", soft_s=1, hard_s=2)
        with pytest.raises(SafeModeError, match=r"reaping.*leave-safe-mode"):
            refuse_in_safe_mode(journal, "reaping")
        assert Leases(journal).take("new", "h", purpose="write", soft_s=1, hard_s=2) == Stamp(EPOCH_STEP, 14)
    with pytest.raises(SafeModeError):
        journals.prune(journals.spare_url)


def test_leaving_safe_mode_restarts_the_limits_of_every_holder(journals: JournalWorld) -> None:
    journals.live(1)
    journals.checkpoint()
    journals.restore()
    journals.clock.sleep(100_000)

    with journals.open(journals.spare_url) as journal:
        assert leave_safe_mode(journal) == 2
        assert leave_safe_mode(journal) is None
        refuse_in_safe_mode(journal, "reaping")
        states = lease_states(journal)
        journals.clock.sleep(119)
        with journal.reading() as reading:
            suspended = reading.get(Lease, "job:1-b")

    assert states == {
        "job:1-a": LeaseState.HELD,
        "job:1-b": LeaseState.SUSPENDED,
        "job:1-c": LeaseState.FREE,
    }
    assert suspended is not None
    assert (suspended.suspended_until_s or 0) > journals.clock.now
    assert journals.verify(journals.spare_url).findings == ()


def test_leaving_safe_mode_writes_suspended_leases_in_pages_and_held_ones_not_at_all(
    journals: JournalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One entry for all leases held the head for seconds."""
    monkeypatch.setattr(safe_mode, "PAGE", 2)
    suspended = ["p1", "p2", "p3"]
    stamps = journals.apply(*map(take, [*suspended, "dropped", "h1", "h2", "h3"]))
    journals.apply(
        *(
            SuspendLease(resource=name, stamp=stamp, for_s=60)
            for name, stamp in zip(suspended, stamps, strict=False)
        ),
        *(take(name, holder=name) for name in ("h4", "h5", "h6")),
    )
    with journals.open() as journal:
        Leases(journal).renew("h", dict(zip(["h1", "h2", "h3"], stamps[4:], strict=True)))
    journals.checkpoint()
    journals.restore()
    journals.clock.sleep(100_000)
    with journals.open(journals.spare_url) as journal:
        before = journal.status().stamp.sequence

        assert leave_safe_mode(journal) == 10

        with journal.reading() as reading:
            entries = reading.entries(before, 10)
            assert {lease.renewed_s for lease in reading.where(Lease, {})} == {journals.clock.now}
    assert [entry.result for entry in entries] == ["2", "2"]
    assert journals.verify(journals.spare_url).findings == ()
