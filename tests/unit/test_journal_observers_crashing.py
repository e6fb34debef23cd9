"""A tailer that dies anywhere, or has a rival, leaves its file at one state of the primary's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.journal.observers import Tailer
from lockgate.storage_core.journal.observers.tailer import RENEWALS_EVERY_S
from tests.commit_world import crash_at
from tests.observer_world import (
    ObserverWorld,
    copy_of,
    lose_after,
    primary_of,
    write_all_kinds,
)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ObserverWorld]:
    opened = ObserverWorld(tmp_path)
    yield opened
    opened.close()


def test_a_tailer_that_is_killed_anywhere_leaves_one_state_and_its_successor_goes_on(tmp_path: Path) -> None:
    number, died = 0, 0
    while True:
        world = ObserverWorld(tmp_path / str(number))
        write_all_kinds(world.journal)

        def follow(world: ObserverWorld = world) -> None:
            tailer = world.tailer()
            tailer.poll()
            write_all_kinds(world.another_process())
            world.clock.now += RENEWALS_EVERY_S
            tailer.poll()

        point = crash_at(number, follow)
        if point is not None and world.tailers:
            died += 1
            status = world.tailers[0]._mirror.status()
            with world.journal.reading() as reading:
                assert status is None or status.stamp <= reading.status().stamp
        tailer = world.tailer()
        while tailer.poll():
            pass
        assert copy_of(world, -1) == primary_of(world)
        world.close()
        if point is None:
            break
        number += 1
    assert died >= 8


def test_a_copy_that_died_amid_following_still_is_at_one_state(world: ObserverWorld) -> None:
    tailer = world.tailer()
    tailer.poll()
    before = copy_of(world)
    write_all_kinds(world.journal)
    FAILPOINTS.arm({"tail.observer-commit.before": "lost"})
    try:
        with pytest.raises(Exception, match="failpoint"):
            tailer.poll()
    finally:
        FAILPOINTS.arm({})
    assert copy_of(world) == before


def test_of_two_tailers_of_one_file_the_slower_changes_nothing(
    world: ObserverWorld, caplog: pytest.LogCaptureFixture
) -> None:
    slow, fast = world.tailer(), world.tailer()
    slow.poll()
    write_all_kinds(world.journal)
    overtake(slow, fast.poll)
    assert copy_of(world) == primary_of(world)
    lose_after(world.another_process(), 2)
    overtake(slow, fast.poll)
    assert copy_of(world) == primary_of(world)
    assert caplog.text == ""


def overtake(tailer: Tailer, meanwhile: Callable[[], object]) -> None:
    """Let something happen when a tailer has read and is about to write."""

    def observe(point: str) -> None:
        if point == "tail.observer-write.before":
            FAILPOINTS.observer = None
            meanwhile()

    FAILPOINTS.observer = observe
    try:
        tailer.poll()
    finally:
        FAILPOINTS.observer = None
