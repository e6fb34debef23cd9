"""Leases in all states: transitions, permitted acquisitions, and fencing of old stamps."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import pytest

from lockgate.storage_core.errors import FencedError, LeaseHeldError
from lockgate.storage_core.journal import Journal, Leases, LeaseState, Mutation, Refused, Stamp
from lockgate.storage_core.journal.entries.claim_entries import ReleaseName
from lockgate.storage_core.journal.entries.lease_entries import (
    TAKES,
    DropLease,
    Purpose,
    TakeLease,
)
from lockgate.storage_core.journal.leases import renewal
from lockgate.storage_core.journal.write.mutation import Written
from tests.support.commit.destination import ManualClock
from tests.support.journal.lease_states import NEXT, lease_states

SOFT_S, HARD_S, SUSPENDED_S = 30.0, 120.0, 90.0
HELD, SOFT, SUSPENDED, HARD, RECOVERING, FREE = LeaseState


class Resource:
    """One resource and its current holder."""

    def __init__(self, leases: Leases, name: str, clock: ManualClock) -> None:
        self.leases = leases
        self.name = name
        self.clock = clock
        self.holder = ""
        self.stamp = Stamp()

    @property
    def state(self) -> LeaseState:
        view = self.leases.look(self.name)
        return FREE if view is None else view.state

    def take(self, holder: str, purpose: Purpose = "write") -> Stamp:
        self.stamp = self.leases.take(self.name, holder, purpose=purpose, soft_s=SOFT_S, hard_s=HARD_S)
        self.holder = holder
        return self.stamp

    def renew(self) -> dict[str, str]:
        return self.leases.renew(self.holder, {self.name: self.stamp})

    def suspend(self) -> None:
        self.leases.suspend(self.name, self.stamp, SUSPENDED_S)

    def free(self) -> None:
        self.leases.free(self.name, self.stamp)


def held(lease: Resource) -> None:
    lease.take("first")


def soft(lease: Resource) -> None:
    held(lease)
    lease.clock.sleep(SOFT_S)


def hard(lease: Resource) -> None:
    held(lease)
    lease.clock.sleep(HARD_S)


def suspended(lease: Resource) -> None:
    held(lease)
    lease.suspend()


def suspended_too_long(lease: Resource) -> None:
    suspended(lease)
    lease.clock.sleep(SUSPENDED_S)


def recovering(lease: Resource) -> None:
    hard(lease)
    lease.take("recoverer", "recover")


def recovering_for_long(lease: Resource) -> None:
    recovering(lease)
    lease.clock.sleep(HARD_S - 1)


def recovering_and_dead(lease: Resource) -> None:
    recovering(lease)
    lease.clock.sleep(HARD_S)


def free(lease: Resource) -> None:
    held(lease)
    lease.free()


def never_taken(lease: Resource) -> None:
    pass


WAYS: dict[Callable[[Resource], None], LeaseState] = {
    held: HELD,
    soft: SOFT,
    suspended: SUSPENDED,
    suspended_too_long: HARD,
    hard: HARD,
    recovering: RECOVERING,
    recovering_for_long: RECOVERING,
    recovering_and_dead: HARD,
    free: FREE,
    never_taken: FREE,
}
"""The steps that bring a lease into each state."""


@pytest.fixture
def lease(leases: Leases, clock: ManualClock) -> Resource:
    return Resource(leases, "job:s3://lake/sales#sales-g1", clock)


def test_every_state_has_a_row_of_transitions_and_every_purpose_a_row_of_states() -> None:
    assert set(NEXT) == set(LeaseState)
    assert set(TAKES) == set(get_args(Purpose))
    assert set(WAYS.values()) == set(LeaseState)


@pytest.mark.parametrize("purpose", get_args(Purpose))
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_lease_can_be_acquired_only_from_the_states_that_its_purpose_allows(
    lease: Resource, way: Callable[[Resource], None], purpose: Purpose
) -> None:
    way(lease)
    assert lease.state is WAYS[way]
    before, holder, view = lease.stamp, lease.holder, lease.leases.look(lease.name)
    if WAYS[way] not in TAKES[purpose]:
        with pytest.raises(LeaseHeldError, match="nothing was changed") as refused:
            lease.take("second", purpose)
        assert holder in str(refused.value)
        assert lease.leases.look(lease.name) == view
        return
    assert lease.take("second", purpose) > before
    assert lease.state is (RECOVERING if purpose == "recover" else HELD)
    if holder:
        assert_fenced(lease, holder, before)
    assert lease.renew() == {}


def assert_fenced(lease: Resource, holder: str, stamp: Stamp) -> None:
    """Assert that an old stamp cannot renew, suspend or free, and that the error gives the reason."""
    view = lease.leases.look(lease.name)
    (lost,) = lease.leases.renew(holder, {lease.name: stamp}).values()
    assert "stop, and change nothing more" in lost
    with pytest.raises(FencedError, match="change nothing more"):
        lease.leases.suspend(lease.name, stamp, SUSPENDED_S)
    with pytest.raises(FencedError, match="change nothing more"):
        lease.leases.free(lease.name, stamp)
    assert lease.leases.look(lease.name) == view


def moves(lease: Resource) -> dict[str, Callable[[], object]]:
    """Return every operation that can be applied to a lease."""
    takes = {
        purpose: (lambda purpose=purpose: lease.take("second", purpose)) for purpose in get_args(Purpose)
    }
    steps = (SOFT_S, HARD_S - SOFT_S)  # no longer steps, so that time passes through every state
    passing = {f"{step_s:g} s": (lambda step_s=step_s: lease.clock.sleep(step_s)) for step_s in steps}
    return {**takes, **passing, "renew": lease.renew, "suspend": lease.suspend, "free": lease.free}


def test_the_observed_lease_transitions_are_exactly_those_of_the_table(
    leases: Leases, clock: ManualClock
) -> None:
    seen: dict[LeaseState, set[LeaseState]] = {state: set() for state in LeaseState}
    for way in WAYS:
        for name in moves(Resource(leases, "any", clock)):
            lease = Resource(leases, f"{way.__name__} {name}", clock)
            way(lease)
            before = lease.state
            try:
                moves(lease)[name]()
            except (LeaseHeldError, FencedError):
                assert lease.state is before
            if lease.state is not before:
                seen[before].add(lease.state)
    assert seen == {state: set(following) for state, following in NEXT.items()}


@pytest.mark.parametrize(
    "way", [held, soft, hard, recovering, recovering_and_dead], ids=lambda way: way.__name__
)
def test_a_renewal_however_late_restarts_both_limits_of_a_lease_that_nobody_has_taken(
    lease: Resource, way: Callable[[Resource], None]
) -> None:
    way(lease)
    lease.clock.sleep(1)
    assert lease.renew() == {}
    lease.clock.sleep(SOFT_S - 1)
    assert lease.state in {HELD, RECOVERING}
    lease.clock.sleep(HARD_S - SOFT_S)
    assert lease.state in {SOFT, RECOVERING}
    lease.clock.sleep(1)
    assert lease.state is HARD


@pytest.mark.parametrize("way", [suspended, suspended_too_long, free], ids=lambda way: way.__name__)
def test_renewing_a_lease_that_cannot_be_renewed_reports_its_loss_and_does_not_change_it(
    lease: Resource, way: Callable[[Resource], None]
) -> None:
    way(lease)
    view = lease.leases.look(lease.name)
    assert list(lease.renew()) == [lease.name]
    assert lease.leases.look(lease.name) == view


def test_a_holder_learns_why_a_lease_that_no_other_holder_acquired_is_lost(lease: Resource) -> None:
    suspended(lease)

    assert "is lost: it was suspended; stop" in lease.renew()[lease.name]

    lease.free()
    assert "is lost: it was given back; stop" in lease.renew()[lease.name]


def test_a_dead_recovery_is_recovered_with_a_new_stamp_and_fenced(lease: Resource) -> None:
    recovering_and_dead(lease)
    died = lease.stamp
    assert lease.take("next recoverer", "recover") > died
    assert lease.state is RECOVERING
    assert_fenced(lease, "recoverer", died)


def test_one_renewal_renews_all_leases_of_its_holder_and_none_of_another(
    leases: Leases, clock: ManualClock
) -> None:
    def take(resource: str, holder: str) -> Stamp:
        return leases.take(resource, holder, purpose="write", soft_s=SOFT_S, hard_s=HARD_S)

    mine = {name: take(name, "me") for name in ("a", "b")}
    left, other = take("left to lapse", "me"), take("of another", "you")
    clock.sleep(SOFT_S)
    assert leases.renew("me", mine) == {}
    assert lease_states(leases.journal) == {"a": HELD, "b": HELD, "left to lapse": SOFT, "of another": SOFT}
    assert left < other


def test_a_holder_that_acquired_its_lease_again_is_fenced_at_the_old_stamp(lease: Resource) -> None:
    held(lease)
    old = lease.stamp
    lease.take("first", "take over")
    assert list(lease.leases.renew("first", {lease.name: old})) == [lease.name]
    with pytest.raises(FencedError):
        lease.leases.free(lease.name, old)


def test_more_leases_than_one_statement_can_name_are_renewed_together(
    leases: Leases, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewal, "_LEASES_A_STATEMENT", 2)
    mine = {
        name: leases.take(name, "me", purpose="write", soft_s=SOFT_S, hard_s=HARD_S)
        for name in ("a", "b", "c", "d", "e")
    }
    clock.sleep(SOFT_S)
    assert leases.renew("me", mine) == {}
    assert set(lease_states(leases.journal).values()) == {HELD}


def test_a_request_that_occurs_twice_in_one_group_has_one_effect(timed_journal: Journal) -> None:
    take = Mutation(op=ReleaseName(store="s", name="n", body_sha256=""), request_id="one")
    first, second = timed_journal.write([take, take])
    assert isinstance(first, Written)
    assert isinstance(second, Written)
    assert first.stamp == second.stamp


def test_the_first_of_two_acquisitions_in_one_group_gets_the_lease(timed_journal: Journal) -> None:
    takes = [
        TakeLease(resource="a", holder=holder, purpose="write", soft_s=SOFT_S, hard_s=HARD_S)
        for holder in ("first", "second")
    ]
    granted, refused = timed_journal.write([Mutation(op=take) for take in takes])
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, LeaseHeldError)
    assert not isinstance(granted, Refused)
    view = Leases(timed_journal).look("a")
    assert view is not None
    assert view.lease.holder == "first"


def test_only_a_free_lease_is_dropped(lease: Resource, timed_journal: Journal) -> None:
    held(lease)
    timed_journal.apply(DropLease(resource=lease.name))
    assert lease.state is HELD
    lease.free()
    timed_journal.apply(DropLease(resource=lease.name))
    assert lease.leases.look(lease.name) is None
    timed_journal.apply(DropLease(resource=lease.name))
