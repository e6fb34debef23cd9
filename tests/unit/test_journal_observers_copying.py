"""When an embedded observer takes one state of its primary over whole, for entries alone will not do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import delete, update

from lockgate.storage_core.journal.database.schema import ENTRY
from tests.observer_world import (
    ObserverWorld,
    copied_until,
    copy_of,
    lose_after,
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


def test_a_copy_that_is_far_behind_is_made_anew(world: ObserverWorld) -> None:
    tailer = world.tailer(far_behind=5)
    tailer.poll()
    write_all_kinds(world.journal)
    assert tailer.poll() == 7
    assert copied_until(world) == 7
    assert copy_of(world) == primary_of(world)


def test_a_copy_whose_next_entries_were_pruned_is_made_anew(world: ObserverWorld) -> None:
    tailer = world.tailer()
    tailer.poll()
    write_all_kinds(world.journal)
    prune(world.journal, 3)
    assert tailer.poll() == 7
    assert copied_until(world) == 7
    assert copy_of(world) == primary_of(world)


def test_a_new_epoch_of_the_primary_makes_the_copy_anew_without_what_was_lost(world: ObserverWorld) -> None:
    tailer = world.tailer()
    for _ in range(3):
        take(world.journal)
    tailer.poll()
    lose_after(world.another_process(), 1)
    assert tailer.poll() == -2
    assert copy_of(world) == primary_of(world)
    take(world.journal)
    assert tailer.poll() == 1
    assert copy_of(world) == primary_of(world)


def test_a_new_epoch_is_noticed_although_it_has_used_the_lost_numbers_again(world: ObserverWorld) -> None:
    tailer = world.tailer()
    for _ in range(3):
        take(world.journal)
    tailer.poll()
    lose_after(world.another_process(), 1)
    for _ in range(3):
        take(world.journal)
    assert tailer.poll() == 1
    assert copy_of(world) == primary_of(world)


def test_a_gap_in_the_entries_makes_the_copy_anew_and_is_told(
    world: ObserverWorld, caplog: pytest.LogCaptureFixture
) -> None:
    tailer = world.tailer()
    tailer.poll()
    write_all_kinds(world.journal)
    with world.journal.database.write() as connection:
        connection.execute(delete(ENTRY).where(ENTRY.c.sequence == 4))
    assert tailer.poll() == 0
    assert "entry 4" in caplog.text
    assert "lockgate journal verify" in caplog.text
    assert tailer.poll() == 7
    assert copy_of(world) == primary_of(world)


def test_an_entry_that_does_not_follow_makes_the_copy_anew_and_is_told(
    world: ObserverWorld, caplog: pytest.LogCaptureFixture
) -> None:
    tailer = world.tailer()
    tailer.poll()
    take(world.journal)
    with world.journal.database.write() as connection:
        connection.execute(update(ENTRY).values(op="a-kind-of-the-future"))
    assert (tailer.poll(), tailer.poll()) == (0, 1)
    assert "a-kind-of-the-future" in caplog.text
    assert copy_of(world) == primary_of(world)
