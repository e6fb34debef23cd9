"""A volume that is to be removed gives its blocks to others; a lost one is dropped from its blocks."""

from __future__ import annotations

import itertools

import pytest

from lockgate.storage_core.errors import (
    ConflictError,
    ObjectNotFoundError,
    SafeModeError,
    StoreUnavailableError,
)
from lockgate.storage_core.files.namespace.members import RegisterVolume
from lockgate.storage_core.files.namespace.rows import RegisteredVolume, VolumeState
from lockgate.storage_core.files.replicas.comparison import Problem
from lockgate.storage_core.files.replicas.repair import Repaired
from lockgate.storage_core.journal.safe_mode import add_operators_reason, leave_safe_mode
from tests.support.commit.destination import crash_at
from tests.support.files.file_world import NAMES, SPARE, TEXT, FileWorld

GONE = NAMES[0]


@pytest.fixture
def world(world: FileWorld) -> FileWorld:
    """Return three volumes with each block, a spare one, and a file on the first volume only."""
    world.fill(has_spare=True).write(world.process(GONE), "/single.log")
    return world


def states(world: FileWorld) -> dict[str, VolumeState]:
    return {row.volume: row.state for row in world.rows(RegisteredVolume)}


def remove(world: FileWorld, *, is_lost: bool = False, accept_loss: bool = False) -> Repaired:
    """Take the volume out of use, and repair."""
    world.files.upkeep.remove(GONE, is_lost=is_lost, accept_loss=accept_loss)
    return world.files.upkeep.repair()


@pytest.mark.parametrize("page", [1, 500], indirect=True)
@pytest.mark.usefixtures("page")
def test_the_blocks_of_a_volume_move_to_others_and_it_is_forgotten(world: FileWorld) -> None:
    done = remove(world)
    assert (done.copied, done.marked, done.problems) == (4 + 3 * 3, 7, [])
    assert GONE not in states(world)
    world.opened[GONE].is_up = False
    assert world.files.open("/a.log").read() == world.files.open("/single.log").read() == TEXT
    assert all(len(world.members(block)) == 3 for block in world.blocks())
    with pytest.raises(ObjectNotFoundError, match="is not registered"):
        world.files.upkeep.remove(GONE)
    assert world.journals.verify().findings == ()


def test_a_block_with_enough_other_replicas_is_not_copied(world: FileWorld) -> None:
    world.files.upkeep.remove(SPARE)
    planned = world.files.upkeep.repair(dry_run=True)
    assert (planned.copied, planned.marked, SPARE in states(world)) == (3, 0, True)
    done = remove(world)  # two volumes are left, and may have two replicas of each block
    assert (done.marked, done.copied, [*states(world)]) == (7, 6, [*NAMES[1:]])


def test_what_cannot_move_stays_and_its_volume_gets_nothing_new(world: FileWorld) -> None:
    for name in (*NAMES[1:], SPARE):
        world.opened[name].is_full = True
    done = remove(world)
    assert (done.copied, done.marked, len(done.problems)) == (0, 0, 7)
    assert states(world)[GONE] is VolumeState.LEAVING
    assert world.files.open("/single.log").read() == TEXT
    for name in (*NAMES[1:], SPARE):
        world.opened[name].is_full = False
    add_operators_reason(world.journal, "a test")
    with pytest.raises(SafeModeError):
        world.files.upkeep.repair()
    leave_safe_mode(world.journal)
    world.files.upkeep.repair()
    assert GONE not in states(world)


@pytest.mark.parametrize("page", [1, 500], indirect=True)
@pytest.mark.usefixtures("page")
def test_a_lost_volume_is_dropped_and_what_only_it_had_is_refused_or_named(world: FileWorld) -> None:
    world.opened[GONE].is_up = False
    before = len(world.entries())
    with pytest.raises(
        ConflictError, match=r"the only good replicas of 3 blocks.*/single\.log.*--accept-loss"
    ):
        world.files.upkeep.remove(GONE, is_lost=True)
    assert len(world.entries()) == before

    done = remove(world, is_lost=True, accept_loss=True)

    assert (done.copied, done.marked, len(done.problems)) == (4, 4, 3)
    assert len(world.entries()) == before + 1 + 4 + 4
    assert world.files.open("/a.log").read() == TEXT
    with pytest.raises(StoreUnavailableError):
        world.files.open("/single.log").read()
    assert {(problem, path) for _, problem, path in world.findings()} == {(Problem.LOST, "/single.log")}
    world.files.delete("/single.log")
    assert world.problems() == set()
    world.files.remove_deleted()
    world.files.upkeep.repair()
    assert GONE not in states(world)
    assert world.journals.verify().findings == ()


def test_a_lost_volume_that_comes_back_is_served_once_it_is_added_again(world: FileWorld) -> None:
    world.opened[GONE].is_up = False
    remove(world, is_lost=True, accept_loss=True)
    assert world.findings("/single.log") != []
    world.opened[GONE].is_up = True
    world.journal.apply(RegisterVolume(volume=GONE, url="s3://volume-0/"))
    done = world.files.upkeep.repair()
    assert (done.left_over, done.deleted) == (4, 4)
    assert world.files.open("/single.log").read() == TEXT
    assert world.problems() == set()


def test_a_file_that_is_being_written_drops_a_lost_volume_when_it_is_closed(world: FileWorld) -> None:
    writer = world.process(*NAMES).append("/b.log")
    writer.write(b"d")
    writer.flush()
    world.opened[GONE].is_up = False
    world.files.delete("/single.log")
    remove(world, is_lost=True)
    assert GONE in states(world)
    writer.write(b"e")
    writer.close()
    world.files.remove_deleted()
    world.files.upkeep.repair()
    assert GONE not in states(world)
    assert world.files.open("/b.log").read() == b"abcde"


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_removal_that_dies_at_any_step_is_completed_by_the_next(world: FileWorld, is_lost: bool) -> None:
    world.files.delete("/single.log")
    world.files.remove_deleted()
    world.files.upkeep.remove(GONE, is_lost=is_lost)
    for die_at in itertools.count():
        died = crash_at(die_at, world.files.upkeep.repair, "copy.", "repair.")
        assert world.files.open("/a.log").read() == TEXT
        if died is None:
            assert die_at > 5
            break
    world.files.upkeep.repair()
    assert GONE not in states(world)
    assert all(len(world.members(block)) == 3 for block in world.blocks())
