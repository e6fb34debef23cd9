"""A volume that is to be removed gives its blocks to others; a lost one is dropped from its blocks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from lockgate.storage_core.errors import (
    ConflictError,
    InvalidInputError,
    SafeModeError,
    StoreUnavailableError,
)
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.namespace.member_marks import DropMembers
from lockgate.storage_core.files.namespace.registered_volumes import RegisterVolume
from lockgate.storage_core.files.namespace.rows import Block, RegisteredVolume, VolumeState
from lockgate.storage_core.files.replicas import comparison
from lockgate.storage_core.files.replicas.comparison import Problem
from lockgate.storage_core.files.volumes.protocol import VolumeId
from lockgate.storage_core.journal.safe_mode import add_operators_reason
from tests.support.commit.destination import Crash
from tests.support.files.file_world import TEXT
from tests.support.files.memory_world import NAMES, SPARE, MemoryWorld
from tests.support.journal.checkpoints import JournalWorld

GONE = NAMES[0]


@pytest.fixture
def world(journals: JournalWorld) -> Iterator[MemoryWorld]:
    """Three volumes with each block, a spare one, and a file on the first volume only."""
    with MemoryWorld(journals, has_spare=True) as world:
        with world.process(GONE).create("/single.log") as writer:
            writer.write(TEXT)
        yield world


def states(world: MemoryWorld) -> dict[str, VolumeState]:
    with world.journal.reading() as reading:
        return {row.volume: row.state for row in reading.where(RegisteredVolume, {})}


@pytest.mark.parametrize("page", [1, 500])
def test_the_blocks_of_a_volume_move_to_others_and_it_is_forgotten(
    world: MemoryWorld, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "PAGE", page)
    done = world.files.upkeep.remove(GONE)
    assert (done.copied, done.dropped, done.only, done.is_gone) == (7, 0, [], True)
    assert GONE not in states(world)
    world.volumes[GONE].is_up = False
    assert world.files.open("/a.log").read() == world.files.open("/single.log").read() == TEXT
    assert all(len(world.members(block)) == 3 for block in world.blocks()[:4])
    with pytest.raises(InvalidInputError, match="knows no volume"):
        world.files.upkeep.remove(GONE)
    assert world.journals.verify().findings == ()


def test_a_block_with_enough_other_replicas_is_not_copied(world: MemoryWorld) -> None:
    world.files.upkeep.remove(SPARE)
    done = world.files.upkeep.remove(GONE)  # two volumes are left, and may have two replicas of each block
    assert (done.dropped, done.copied, done.is_gone) == (4, 3, True)


def test_what_cannot_move_stays_and_its_volume_gets_nothing_new(world: MemoryWorld) -> None:
    for name in (*NAMES[1:], SPARE):
        world.volumes[name].capacity_bytes = 0
    done = world.files.upkeep.remove(GONE)
    assert (done.copied, len(done.problems), len(done.only), done.is_gone) == (0, 7, 3, False)
    assert states(world)[GONE] is VolumeState.LEAVING
    assert world.files.open("/single.log").read() == TEXT
    for name in (*NAMES[1:], SPARE):
        world.volumes[name].capacity_bytes = 1000
    assert world.files.upkeep.remove(GONE).is_gone
    add_operators_reason(world.journal, "a test")
    with pytest.raises(SafeModeError):
        world.files.upkeep.remove(NAMES[1])


@pytest.mark.parametrize("page", [1, 500])
def test_a_lost_volume_is_dropped_and_what_only_it_had_is_refused_or_named(
    world: MemoryWorld, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "PAGE", page)
    world.volumes[GONE].is_up = False
    before = world.entries()
    with pytest.raises(
        ConflictError, match=r"the only good replicas of 3 blocks.*/single\.log.*--accept-loss"
    ):
        world.files.upkeep.remove(GONE, is_lost=True)
    assert world.entries() == before

    done = world.files.upkeep.remove(GONE, is_lost=True, accept_loss=True)

    assert (done.dropped, done.unsealed, done.is_gone) == (4, 0, False)
    assert [one.path for one in done.only] == ["/single.log"] * 3
    assert world.entries() == before + 1 + (2 if page == 500 else 7) - (page == 500)
    repaired = world.files.upkeep.repair()
    assert (repaired.copied, len(repaired.problems)) == (4, 3)
    assert world.files.open("/a.log").read() == TEXT
    with pytest.raises(StoreUnavailableError):
        world.files.open("/single.log").read()
    assert {(problem, path) for _, problem, path in world.findings()} == {(Problem.LOST, "/single.log")}
    world.files.delete("/single.log")
    assert world.problems() == set()
    world.files.remove_deleted()
    assert world.files.upkeep.remove(GONE, is_lost=True).is_gone
    assert world.journals.verify().findings == ()


def test_a_lost_volume_that_comes_back_is_served_once_it_is_added_again(world: MemoryWorld) -> None:
    world.files.upkeep.remove(GONE, is_lost=True, accept_loss=True)
    world.files.upkeep.repair()
    assert world.findings("/single.log") != []
    world.journal.apply(RegisterVolume(volume=GONE, url="s3://volume-0/"))
    done = world.files.upkeep.repair()
    assert (done.released, done.left_over, done.deleted) == (3, 4, 4)
    assert world.files.open("/single.log").read() == TEXT
    assert world.problems() == set()


def test_a_file_that_is_being_written_drops_a_lost_volume_when_it_is_closed(world: MemoryWorld) -> None:
    writer = world.process(*NAMES).append("/b.log")
    writer.write(b"d")
    writer.flush()
    world.volumes[GONE].is_up = False
    world.files.delete("/single.log")
    assert world.files.upkeep.remove(GONE, is_lost=True).unsealed == 1
    writer.write(b"e")
    writer.close()
    world.files.remove_deleted()
    assert world.files.upkeep.remove(GONE, is_lost=True).is_gone
    assert world.files.open("/b.log").read() == b"abcde"


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_removal_that_dies_at_any_step_is_completed_by_the_next(world: MemoryWorld, is_lost: bool) -> None:
    world.files.delete("/single.log")
    world.files.remove_deleted()
    for die_at in itertools.count():
        steps = itertools.count()

        def die(point: str, die_at: int = die_at, steps: Iterator[int] = steps) -> None:
            if point.startswith(("copy.", "remove.")) and next(steps) == die_at:
                raise Crash(point)

        FAILPOINTS.observer = die
        try:
            done = world.files.upkeep.remove(GONE, is_lost=is_lost)
        except Crash:
            FAILPOINTS.observer = None
            assert world.files.open("/a.log").read() == TEXT
            world.files.upkeep.repair()  # deletes a copy that was not entered
            continue
        FAILPOINTS.observer = None
        assert done.is_gone
        world.files.upkeep.repair()
        assert all(len(world.members(block)) == 3 for block in world.blocks())
        return


def test_members_of_a_volume_in_use_are_not_dropped(world: MemoryWorld) -> None:
    first, *_ = world.blocks()
    with world.journal.reading() as reading:
        row = reading.get(Block, first)
    assert row is not None
    with pytest.raises(ConflictError, match="is in use"):
        world.journal.apply(DropMembers(volume=VolumeId(GONE), blocks=((first, row.stamp),)))
