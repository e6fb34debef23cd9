"""Blocks with too few good replicas are copied; a death at any step loses nothing and is taken up again."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from lockgate.storage_core.errors import ConflictError, SafeModeError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.namespace.member_marks import AddMember
from lockgate.storage_core.files.namespace.rows import Block
from lockgate.storage_core.files.replicas.replica_check import Problem
from lockgate.storage_core.files.volumes.protocol import VolumeId
from lockgate.storage_core.files.volumes.replica import BlockId, ReplicaState
from lockgate.storage_core.journal.safe_mode import add_operators_reason
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.stamp import Stamp
from tests.support.commit.destination import Crash
from tests.support.files.file_world import TEXT
from tests.support.files.memory_volume import Stored
from tests.support.files.memory_world import NAMES, SPARE, MemoryWorld, world_with_a_spare_volume
from tests.support.journal.checkpoints import JournalWorld


@pytest.fixture
def world(journals: JournalWorld) -> Iterator[MemoryWorld]:
    with world_with_a_spare_volume(journals, capacity_bytes=1_000_000) as world:
        yield world


def test_a_lost_replica_is_replaced_by_a_copy_on_another_volume(world: MemoryWorld) -> None:
    first, *_ = world.blocks()
    del world.volumes[NAMES[0]].stored[first]
    world.files.upkeep.report()
    before = world.entries()

    assert [(one.block, one.volume) for one in world.files.upkeep.re_replicate(dry_run=True)] == [
        (first, None)
    ]
    assert world.entries() == before
    (copied,) = world.files.upkeep.re_replicate()

    assert (copied.block, copied.volume, copied.why_not) == (first, SPARE, "")
    assert world.entries() == before + 1
    assert world.members(first) == [NAMES[1], NAMES[2], SPARE]
    assert world.volumes[SPARE].stored[first].state is ReplicaState.SEALED
    assert list(world.files.upkeep.re_replicate()) == []
    assert world.problems() == set()
    assert world.process(SPARE, NAMES[0]).open("/a.log").read(8) == TEXT[:8]
    assert world.journals.verify().findings == ()


def test_a_corrupt_replica_is_replaced_and_then_left_over(world: MemoryWorld) -> None:
    first, *_ = world.blocks()
    world.volumes[NAMES[1]].stored[first].data.pop()
    world.files.upkeep.report()
    (copied,) = world.files.upkeep.re_replicate()
    assert copied.volume == SPARE
    assert world.problems() == {Problem.LEFT_OVER}
    assert world.files.upkeep.delete_left_over().deleted == 1
    assert first not in world.volumes[NAMES[1]].stored
    assert world.problems() == set()


def test_a_replica_is_made_again_on_its_volume_if_no_other_can_take_it(world: MemoryWorld) -> None:
    first, second, *_ = world.blocks()
    world.volumes[SPARE].is_up = False
    damaged = world.volumes[NAMES[0]].stored[second]
    del world.volumes[NAMES[0]].stored[first]
    world.volumes[NAMES[0]].stored[second].data.pop()
    world.files.upkeep.report()

    found = {one.block: one for one in world.files.upkeep.re_replicate()}

    assert [(found[one].volume, found[one].why_not) for one in (first, second)] == [(NAMES[0], "")] * 2
    assert world.members(first) == world.members(second) == [*NAMES]
    assert world.faults() == {}
    assert world.volumes[NAMES[0]].aside == {second: damaged}  # kept until all members are good
    assert world.process(NAMES[0]).open("/a.log").read(16) == TEXT[:16]
    done = world.files.upkeep.delete_left_over()
    assert (done.set_aside, done.discarded) == (1, 1)
    assert world.volumes[NAMES[0]].aside == {}


def test_a_replica_in_quarantine_is_kept_while_a_member_has_no_good_one(world: MemoryWorld) -> None:
    first, *_ = world.blocks()
    world.volumes[SPARE].is_up = False
    world.volumes[NAMES[0]].stored[first].data.pop()
    world.files.upkeep.report()
    assert [one.why_not for one in world.files.upkeep.re_replicate()] == [""]
    world.volumes[NAMES[1]].stored[first].data.pop()
    done = world.files.upkeep.delete_left_over()
    assert (done.set_aside, done.discarded) == (1, 0)
    world.files.upkeep.report()
    assert world.files.upkeep.delete_left_over().discarded == 0
    list(world.files.upkeep.re_replicate())
    assert world.files.upkeep.delete_left_over().discarded == 2


def test_what_is_set_aside_of_a_removed_file_is_deleted(world: MemoryWorld) -> None:
    first, *_ = world.blocks()
    world.volumes[SPARE].is_up = False
    world.volumes[NAMES[0]].stored[first].data.pop()
    world.files.upkeep.report()
    list(world.files.upkeep.re_replicate())
    world.files.delete("/a.log")
    world.files.remove_deleted()
    assert world.files.upkeep.delete_left_over().discarded == 1
    world.volumes[NAMES[0]].aside[BlockId(7 << 44)] = Stored(Stamp(7, 0))
    assert world.files.upkeep.delete_left_over().discarded == 0  # of a history that a restore has undone


def test_a_block_that_lost_a_member_in_a_pipeline_gets_another_one(world: MemoryWorld) -> None:
    *_, last = world.blocks()
    world.volumes[NAMES[0]].is_up = False
    with world.files.append("/b.log") as writer:
        writer.write(b"d")
    assert world.members(last) == [*NAMES[1:]]
    (copied,) = world.files.upkeep.re_replicate()
    assert (copied.block, copied.volume) == (last, SPARE)
    world.volumes[NAMES[1]].is_up = world.volumes[NAMES[2]].is_up = False
    assert world.files.open("/b.log").read() == b"abcd"


def test_a_block_that_is_written_is_not_copied(world: MemoryWorld) -> None:
    world.volumes[NAMES[0]].is_up = False
    writer = world.files.append("/b.log")
    writer.write(b"d")
    writer.flush()
    assert list(world.files.upkeep.re_replicate()) == []
    writer.close()
    assert [one.volume for one in world.files.upkeep.re_replicate()] == [SPARE]


def test_a_copy_of_a_block_that_is_opened_meanwhile_is_no_member(world: MemoryWorld) -> None:
    *_, last = world.blocks()
    del world.volumes[NAMES[0]].stored[last]
    world.files.upkeep.report()
    others = world.process(*NAMES[1:])

    def append(point: str) -> None:
        if point == "copy.entry.before":
            FAILPOINTS.observer = None
            with others.append("/b.log") as writer:
                writer.write(b"d")

    FAILPOINTS.observer = append
    (refused,) = world.files.upkeep.re_replicate()
    others.close()
    assert "has changed since" in refused.why_not
    assert world.members(last) == [*NAMES[1:]]
    assert world.files.upkeep.delete_left_over().deleted == 1
    assert [one.why_not for one in world.files.upkeep.re_replicate()] == [""]
    assert len(world.members(last)) == 3
    assert world.files.open("/b.log").read() == b"abcd"


def test_a_copy_that_took_too_long_is_refused(world: MemoryWorld) -> None:
    first, *_ = world.blocks()
    del world.volumes[NAMES[0]].stored[first]
    world.files.upkeep.report()

    def stop(point: str) -> None:
        if point == "copy.entry.before":
            world.clock.sleep(load_settings().lease_hard_s + 1)

    FAILPOINTS.observer = stop
    found = list(world.files.upkeep.re_replicate())
    assert "took too long" in found[0].why_not
    assert {block for block, _ in world.faults()} == {first}


def test_nothing_is_copied_in_safe_mode(world: MemoryWorld) -> None:
    first, *_ = world.blocks()
    del world.volumes[NAMES[0]].stored[first]
    world.files.upkeep.report()
    add_operators_reason(world.journal, "a test")
    with pytest.raises(SafeModeError):
        list(world.files.upkeep.re_replicate())
    assert world.volumes[SPARE].stored == {}
    with pytest.raises(SafeModeError):
        world.journal.apply(entry(world, first))


def entry(world: MemoryWorld, block: BlockId, *, most: int = 4) -> AddMember:
    with world.journal.reading() as reading:
        row = reading.get(Block, block)
        now_s = reading.now_s()
    assert row is not None
    return AddMember(
        block=block, volume=SPARE, generation=row.stamp, instead_of=None, most=most, until_s=now_s + 60
    )


def test_a_member_is_added_once_and_not_beyond_the_wanted_number(world: MemoryWorld) -> None:
    first, *_ = world.blocks()
    with pytest.raises(ConflictError, match="has 3 members already"):
        world.journal.apply(entry(world, first, most=3))
    world.journal.apply(entry(world, first))
    with pytest.raises(ConflictError, match="is one already"):
        world.journal.apply(entry(world, first, most=9))


def re_replicated(world: MemoryWorld, die_at: int) -> bool:
    """Copy blocks in a process that dies at a step; return whether it was done before."""
    steps = itertools.count()

    def die(point: str) -> None:
        if point.startswith("copy.") and next(steps) == die_at:
            raise Crash(point)

    FAILPOINTS.observer = die
    try:
        list(world.files.upkeep.re_replicate())
    except Crash:
        return False
    else:
        return True
    finally:
        FAILPOINTS.observer = None


def test_a_copier_that_dies_at_any_step_leaves_the_block_whole(world: MemoryWorld) -> None:
    first, *_ = world.blocks()
    for die_at in itertools.count():
        victim = world.members(first)[0]
        world.volumes[VolumeId(victim)].stored.pop(first)
        world.files.upkeep.report()
        is_over = re_replicated(world, die_at)
        assert world.files.open("/a.log").read() == TEXT
        world.files.upkeep.delete_left_over()
        world.files.upkeep.report()
        assert [one.why_not for one in world.files.upkeep.re_replicate()] in ([], [""])
        assert len(world.members(first)) == 3
        assert world.problems() == set()
        assert world.files.open("/a.log").read() == TEXT
        if is_over:
            assert die_at == 8
            return


def test_a_copier_that_dies_at_any_step_in_the_place_of_a_damaged_replica(world: MemoryWorld) -> None:
    first, *_ = world.blocks()
    world.volumes[SPARE].is_up = False
    for die_at in itertools.count():
        world.volumes[NAMES[1]].stored[first].data.pop()
        world.files.upkeep.report()
        is_over = re_replicated(world, die_at)
        assert world.files.open("/a.log").read() == TEXT
        if first not in members_with_fault(world):  # the entry was written before the death
            assert die_at >= 9
        else:
            at = world.volumes[NAMES[1]]
            kept = at.stored if die_at == 0 else at.aside
            assert kept[first].data == TEXT[:7]  # the damaged one is kept
        assert [one.why_not for one in world.files.upkeep.re_replicate()] in ([], [""])
        assert world.problems() == {Problem.UNREACHABLE}
        done = world.files.upkeep.delete_left_over()
        assert (done.deleted, done.discarded) == (0, 1)
        if is_over:
            assert die_at == 10
            return


def members_with_fault(world: MemoryWorld) -> set[int]:
    return {block for block, _ in world.faults()}


def test_a_good_copy_that_another_process_has_made_in_the_place_is_not_set_aside(world: MemoryWorld) -> None:
    first, second, *_ = world.blocks()
    world.volumes[SPARE].is_up = False
    for block in (first, second):
        world.volumes[NAMES[1]].stored[block].data.pop()
    world.files.upkeep.report()
    slow = world.files.upkeep.re_replicate()
    assert next(slow).block == first  # it has read both blocks by now
    assert [one.why_not for one in world.process(*world.volumes).upkeep.re_replicate()] == [""]
    good = world.volumes[NAMES[1]].stored[second]

    assert "has changed" in next(slow).why_not

    assert world.volumes[NAMES[1]].stored[second] is good
    assert world.faults() == {}
