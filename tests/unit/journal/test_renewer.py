"""The thread that renews a holder's leases: its start and end, lost leases, and outages of the journal."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from lockgate.storage_core.errors import FencedError, JournalUnavailableError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.journal import Journal, Leases, LeaseState, Stamp, open_journal
from lockgate.storage_core.journal.leases.renewer import RENEWER, Renew, Renewer
from tests.support.commit.destination import ManualClock

SOFT_S, HARD_S, EVERY_S = 30.0, 120.0, 10.0


@dataclass
class SteppedClock(ManualClock):
    """Ends a wait of the renewing thread when the test decides."""

    step: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    waiting: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def wait(self, event: threading.Event, seconds: float) -> bool:
        assert seconds == EVERY_S
        self.waiting.release()
        while not event.is_set() and not self.step.acquire(timeout=0.02):
            pass
        return event.is_set()

    def let_it_renew(self) -> None:
        """Make the thread renew once, and return when it waits again."""
        self.waiting.acquire()
        self.step.release()
        self.waiting.acquire()
        self.waiting.release()


def late(leases: Leases) -> Renew:
    """Look up `renew` at each call, so that a test can replace it."""
    return lambda holder, held: leases.renew(holder, held)  # noqa: PLW0108


@pytest.fixture
def renewer(leases: Leases, clock: ManualClock) -> Iterator[Renewer]:
    renewer = Renewer(late(leases), every_s=EVERY_S, clock=clock)
    yield renewer
    for resource in ("a", "b"):
        renewer.drop(resource)


def keep(renewer: Renewer, leases: Leases, resource: str) -> Stamp:
    stamp = leases.take(resource, renewer.holder, purpose="take over", soft_s=SOFT_S, hard_s=HARD_S)
    renewer.keep(resource, stamp, since_s=1_800_000_000.0)
    return stamp


def threads() -> int:
    return [thread.name for thread in threading.enumerate()].count(RENEWER)


def state(leases: Leases, resource: str) -> LeaseState:
    view = leases.look(resource)
    assert view is not None
    return view.state


def test_one_thread_renews_all_leases_and_ends_with_the_last(renewer: Renewer, leases: Leases) -> None:
    before = threads()
    keep(renewer, leases, "a")
    keep(renewer, leases, "b")
    assert threads() == before + 1
    renewer.drop("a")
    assert threads() == before + 1
    renewer.drop("b")
    assert threads() == before
    keep(renewer, leases, "a")
    assert threads() == before + 1


def test_a_lease_that_was_taken_again_is_not_dropped_by_its_former_stamp(
    renewer: Renewer, leases: Leases
) -> None:
    former = keep(renewer, leases, "a")
    newer = keep(renewer, leases, "a")
    renewer.drop("a", former)
    renewer.check("a", EVERY_S)
    renewer.drop("a", newer)
    with pytest.raises(FencedError):
        renewer.check("a", EVERY_S)


def test_the_thread_renews_all_kept_leases(journal_url: str) -> None:
    clock = SteppedClock()
    with open_journal(journal_url, clock=clock) as journal:
        leases = Leases(journal)
        renewer = Renewer(leases.renew, every_s=EVERY_S, clock=clock)
        for resource in ("a", "b"):
            keep(renewer, leases, resource)
        clock.sleep(SOFT_S)
        assert state(leases, "a") is LeaseState.SOFT
        clock.let_it_renew()
        assert [state(leases, resource) for resource in ("a", "b")] == [LeaseState.HELD] * 2
        for resource in ("a", "b"):
            renewer.drop(resource)


def test_the_thread_survives_a_temporary_outage_of_the_journal(journal_url: str) -> None:
    clock = SteppedClock()
    with open_journal(journal_url, clock=clock) as journal:
        leases = Leases(journal)
        renewer = Renewer(leases.renew, every_s=EVERY_S, clock=clock)
        keep(renewer, leases, "a")
        clock.sleep(SOFT_S)
        FAILPOINTS.arm({"idle.journal-renew.before": "refuse"})
        try:
            clock.let_it_renew()
        finally:
            FAILPOINTS.arm({})
        assert state(leases, "a") is LeaseState.SOFT
        clock.let_it_renew()
        assert state(leases, "a") is LeaseState.HELD
        renewer.drop("a")


def test_a_check_renews_only_a_lease_that_was_not_renewed_recently(
    renewer: Renewer, leases: Leases, clock: ManualClock
) -> None:
    keep(renewer, leases, "a")
    leases.take("a", "another", purpose="take over", soft_s=SOFT_S, hard_s=HARD_S)
    clock.sleep(5)
    renewer.check("a", within_s=6)  # renewed recently enough, so the loss is not noticed yet
    with pytest.raises(FencedError, match="held by another"):
        renewer.check("a", within_s=5)
    with pytest.raises(FencedError, match="held by another"):
        renewer.check("a", within_s=1_000_000)


def test_a_check_asks_the_journal_in_time_though_the_clock_was_set_back(
    renewer: Renewer, leases: Leases, clock: ManualClock
) -> None:
    keep(renewer, leases, "a")
    leases.take("a", "another", purpose="take over", soft_s=SOFT_S, hard_s=HARD_S)
    clock.sleep(60)
    clock.jump(-59)

    with pytest.raises(FencedError, match="by another"):
        renewer.check("a", within_s=60)


def test_the_loss_of_one_lease_does_not_affect_the_others(
    renewer: Renewer, leases: Leases, clock: ManualClock
) -> None:
    keep(renewer, leases, "a")
    keep(renewer, leases, "b")
    leases.take("a", "another", purpose="take over", soft_s=SOFT_S, hard_s=HARD_S)
    renewer.renew()
    with pytest.raises(FencedError):
        renewer.check("a", within_s=60)
    renewer.check("b", within_s=0)
    keep(renewer, leases, "a")
    renewer.check("a", within_s=0)


def test_a_check_of_a_lease_that_is_not_kept_is_fenced(renewer: Renewer, leases: Leases) -> None:
    with pytest.raises(FencedError, match="does not hold its lease"):
        renewer.check("a", within_s=60)
    keep(renewer, leases, "a")
    renewer.drop("a")
    with pytest.raises(FencedError, match="does not hold its lease"):
        renewer.check("a", within_s=60)


def test_a_check_reports_an_unavailable_journal_and_the_lease_is_not_lost(
    leases: Leases, clock: ManualClock, timed_journal: Journal
) -> None:
    renewer = Renewer(late(leases), every_s=EVERY_S, clock=clock)
    keep(renewer, leases, "a")
    working = leases.renew
    leases.renew = down  # type: ignore[method-assign]
    with pytest.raises(JournalUnavailableError):
        renewer.check("a", within_s=0)
    leases.renew = working  # type: ignore[method-assign]
    renewer.check("a", within_s=0)
    renewer.drop("a")


def down(*_: object) -> dict[str, str]:
    raise JournalUnavailableError("down; nothing was applied")


def test_a_renewal_whose_answer_was_lost_is_retried(
    renewer: Renewer, leases: Leases, clock: ManualClock
) -> None:
    keep(renewer, leases, "a")
    clock.sleep(SOFT_S)
    FAILPOINTS.arm({"idle.journal-renew.after": "lost"})
    try:
        renewer.check("a", within_s=0)
    finally:
        FAILPOINTS.arm({})
    assert state(leases, "a") is LeaseState.HELD


def test_the_age_of_a_lease_counts_from_the_request_and_not_from_a_slow_answer(
    renewer: Renewer, leases: Leases, clock: ManualClock
) -> None:
    keep(renewer, leases, "a")
    working = leases.renew

    def slow(holder: str, held: dict[str, Stamp]) -> dict[str, str]:
        lost = working(holder, held)
        clock.sleep(20)
        return lost

    leases.renew = slow  # type: ignore[assignment,method-assign]
    renewer.renew()
    renewals = []
    leases.renew = lambda *given: renewals.append(given) or {}  # type: ignore[func-returns-value,method-assign]
    renewer.check("a", within_s=21)
    assert renewals == []
    renewer.check("a", within_s=20)
    assert len(renewals) == 1
