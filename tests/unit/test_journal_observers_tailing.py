"""The embedded observer follows its primary by the entries, and changes nothing there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import update

from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.journal import Leases, LeaseState
from lockgate.storage_core.journal.database.schema import HEAD
from lockgate.storage_core.journal.entries.leases import state_of
from lockgate.storage_core.journal.entries.rows import Lease
from lockgate.storage_core.journal.observers.tailer import BATCH
from tests.observer_world import (
    ObserverWorld,
    asked,
    copied_until,
    copy_of,
    dump,
    figure,
    primary_of,
    prune,
    take,
    write_all_kinds,
)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ObserverWorld]:
    opened = ObserverWorld(tmp_path)
    yield opened
    opened.close()


def test_a_copy_is_made_and_then_follows_by_entries(world: ObserverWorld) -> None:
    take(world.journal)
    tailer = world.tailer()
    assert tailer.poll() == 1
    write_all_kinds(world.journal)
    assert tailer.poll() == 7
    assert tailer.poll() == 0
    assert copy_of(world) == primary_of(world)
    assert copied_until(world) == 1
    with world.client().journal.reading() as primary, world.tailers[0]._mirror.database.snapshot() as copy:
        assert world.tailers[0]._mirror._reading(copy).entries(1, 100) == primary.entries(1, 100)


def test_the_primary_is_not_changed_by_its_observers(world: ObserverWorld) -> None:
    write_all_kinds(world.journal)
    before = dump(world.root / "journal.db")
    tailer, client = world.tailer(), world.client()
    tailer.poll()
    client.read(asked)
    client.msync()
    client.observers()
    tailer.poll()
    assert dump(world.root / "journal.db") == before


def test_a_primary_that_does_not_change_costs_the_copy_no_write(world: ObserverWorld) -> None:
    tailer = world.tailer()
    write_all_kinds(world.journal)
    for _ in range(2):
        tailer.poll()
    hits: list[str] = []
    FAILPOINTS.observer = hits.append
    try:
        tailer.poll()
    finally:
        FAILPOINTS.observer = None
    assert [hit for hit in hits if "observer" in hit] == []


def test_many_entries_are_followed_in_bounded_batches(world: ObserverWorld) -> None:
    tailer = world.tailer()
    tailer.poll()
    for _ in range(BATCH + 3):
        take(world.journal)
    assert (tailer.poll(), tailer.poll(), tailer.poll()) == (BATCH, 3, 0)
    assert copy_of(world) == primary_of(world)
    assert copied_until(world) == 0


def test_entries_that_the_primary_prunes_are_pruned_in_the_copy(world: ObserverWorld) -> None:
    tailer = world.tailer()
    tailer.poll()
    write_all_kinds(world.journal)
    tailer.poll()
    prune(world.journal, 3)
    tailer.poll()
    assert copied_until(world) == 3
    with tailer._mirror.database.snapshot() as connection:
        entries = tailer._mirror._reading(connection).entries(0, 100)
    assert [entry.sequence for entry in entries] == [4, 5, 6, 7]


def test_renewals_reach_the_copy_although_no_entry_says_them(world: ObserverWorld) -> None:
    tailer, leases = world.tailer(), Leases(world.journal)
    stamp = take(world.journal, "a")
    tailer.poll()
    world.clock.now += 100
    assert leases.renew("h", {"a": stamp}) == {}
    tailer.poll()
    (lease,) = world.client().read(lambda reading: reading.where(Lease, {}))
    assert state_of(lease, world.clock.now_s()) is LeaseState.HELD
    assert copy_of(world) == primary_of(world)


def test_a_renewal_by_a_later_holder_is_not_taken_for_one_by_the_earlier(world: ObserverWorld) -> None:
    # The batch ends before the entry by which the lease changes hands, and the new holder has renewed since:
    # were its renewal copied, that entry would find a lease that lives, and be refused.
    tailer, leases = world.tailer(), Leases(world.journal)
    tailer.poll()
    take(world.journal, "a")
    for _ in range(BATCH - 1):
        take(world.journal)
    world.clock.now += 1000
    again = leases.take("a", "h", purpose="recover", soft_s=30, hard_s=120)
    world.clock.now += 10
    leases.renew("h", {"a": again})
    assert (tailer.poll(), tailer.poll()) == (BATCH, 1)
    assert copy_of(world) == primary_of(world)


def test_safe_mode_reaches_the_copy_although_no_entry_says_it(world: ObserverWorld) -> None:
    tailer = world.tailer()
    tailer.poll()
    with world.journal.database.write() as connection:
        connection.execute(update(HEAD).values(safe_since_s=5.0, safe_reason="restored"))
    tailer.poll()
    status = tailer._mirror.status()
    assert status is not None
    assert (status.safe_since_s, status.safe_reason) == (5.0, "restored")


def test_the_lag_of_a_copy_is_told(world: ObserverWorld) -> None:
    tailer = world.tailer()
    tailer.poll()
    take(world.journal)
    world.clock.now += 3.0
    tailer.poll()
    name = tailer._mirror.database.name
    assert figure("observer_lag_seconds", observer=name) == 3.0
    tailer.poll()
    assert figure("observer_lag_seconds", observer=name) == 0.0
