"""Two journals, by name in one database or in two: a stamp, renewal or claim of one is none of the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockgate.storage_core.errors import FencedError, LeaseHeldError
from lockgate.storage_core.journal import Journal, Leases, LeaseState, Stamp, open_journal
from lockgate.storage_core.journal.claims import Claims
from lockgate.storage_core.journal.entries.claim_entries import ClaimName
from tests.support.commit.destination import ManualClock
from tests.support.journal.lease_states import lease_states

SOFT_S, HARD_S = 30.0, 120.0
HOLDER = "the same process"


@pytest.fixture(params=["one database", "two databases"])
def two(
    request: pytest.FixtureRequest, timed_journal: Journal, clock: ManualClock, tmp_path: Path
) -> Iterator[tuple[Leases, Leases]]:
    """Yield the leases of two journals."""
    url = str(timed_journal.database.url.render_as_string(hide_password=False))
    second = url if request.param == "one database" else f"sqlite:///{tmp_path / 'second.db'}"
    with open_journal(second, "logs", clock=clock) as other:
        yield Leases(timed_journal), Leases(other)


def take(leases: Leases, resource: str = "file:7") -> Stamp:
    return leases.take(resource, HOLDER, purpose="write", soft_s=SOFT_S, hard_s=HARD_S)


def test_a_stamp_of_one_journal_is_refused_by_the_other(two: tuple[Leases, Leases]) -> None:
    one, other = two
    stamp = take(one)
    for lost in ("it does not exist", "it is held by the same process"):
        for call in (lambda: other.free("file:7", stamp), lambda: other.suspend("file:7", stamp, 60.0)):
            with pytest.raises(FencedError, match=lost):
                call()
        assert lost in other.renew(HOLDER, {"file:7": stamp})["file:7"]
        if other.look("file:7") is None:
            take(other, "file:6")
            assert take(other) != stamp
    one.free("file:7", stamp)
    assert lease_states(one.journal) == {"file:7": LeaseState.FREE}
    assert lease_states(other.journal) == {"file:6": LeaseState.HELD, "file:7": LeaseState.HELD}


def test_a_lease_of_one_journal_neither_keeps_nor_fences_nor_renews_one_of_the_other(
    two: tuple[Leases, Leases], clock: ManualClock
) -> None:
    one, other = two
    stamp, of_other = take(one), take(other)
    clock.sleep(SOFT_S)
    assert other.renew(HOLDER, {"file:7": of_other}) == {}
    assert lease_states(one.journal) == {"file:7": LeaseState.SOFT}
    assert lease_states(other.journal) == {"file:7": LeaseState.HELD}
    other.take("file:7", "another", purpose="take over", soft_s=SOFT_S, hard_s=HARD_S)
    assert one.renew(HOLDER, {"file:7": stamp}) == {}
    assert lease_states(one.journal) == {"file:7": LeaseState.HELD}
    with pytest.raises(LeaseHeldError):
        take(one)


def test_a_claim_and_a_request_of_one_journal_are_none_of_the_other(two: tuple[Leases, Leases]) -> None:
    names = []
    for leases in two:
        journal = leases.journal
        journal.apply(ClaimName(store="s3://lake", name="turn-1", body=journal.name), "the same request")
        names.append(Claims(journal, "s3://lake").find("turn-1"))
    assert names == ["main", "logs"]
    Claims(two[0].journal, "s3://lake").release(["turn-1"])
    assert Claims(two[1].journal, "s3://lake").find("turn-1") == "logs"
