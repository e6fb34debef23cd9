"""Blocks are moved between volumes; no step leaves a block with fewer good replicas."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from lockgate.storage_core.errors import ConflictError, InvalidInputError, SafeModeError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.namespace.member_marks import AddMember
from lockgate.storage_core.files.namespace.registered_volumes import RegisterVolume
from lockgate.storage_core.files.namespace.rows import Block
from lockgate.storage_core.files.replicas.rebalancing import Moved
from lockgate.storage_core.files.volumes.protocol import UNLIMITED_BYTES, VolumeId
from lockgate.storage_core.journal.safe_mode import add_operators_reason
from lockgate.storage_core.settings import load_settings
from tests.support.commit.destination import Crash
from tests.support.files.file_world import TEXT
from tests.support.files.memory_world import NAMES, SPARE, MemoryWorld, world_with_a_spare_volume
from tests.support.journal.checkpoints import JournalWorld


@pytest.fixture
def world(journals: JournalWorld) -> Iterator[MemoryWorld]:
    """Three volumes of 100 bytes with 23 of them used, and a new one that is empty."""
    with world_with_a_spare_volume(journals, capacity_bytes=100) as world:
        yield world


def used(world: MemoryWorld) -> list[int]:
    return [volume.usage().used_bytes for volume in world.volumes.values()]


def move(world: MemoryWorld, threshold: float = 0.02, *, dry_run: bool = False) -> list[Moved]:
    return list(world.files.upkeep.rebalance(threshold=threshold, dry_run=dry_run))


def check_whole(world: MemoryWorld) -> None:
    for block in world.blocks():
        with world.journal.reading() as reading:
            row = reading.get(Block, block)
        assert row is not None
        found = world.members(block)
        assert len(found) == 3
        for name in found:
            stored = world.volumes[VolumeId(name)].stored[block]
            assert (stored.stamp, len(stored.data)) == (row.stamp, row.length_bytes)


def test_blocks_are_moved_until_each_volume_uses_about_the_same_share(world: MemoryWorld) -> None:
    before = world.entries()
    planned = move(world, dry_run=True)
    assert (world.entries(), used(world)) == (before, [23, 23, 23, 0])

    moved = move(world)

    assert moved == planned
    assert {one.target for one in moved} == {SPARE}
    assert len({one.block for one in moved}) == len(moved)
    assert world.entries() == before + len(moved)
    assert used(world) == [15, 15, 19, 20]
    check_whole(world)
    assert world.problems() == set()
    assert move(world) == []
    assert world.files.open("/a.log").read() == TEXT
    assert world.journals.verify().findings == ()


def test_a_wide_threshold_moves_no_more_than_it_must(world: MemoryWorld) -> None:
    assert sum(one.length_bytes for one in move(world, 0.1)) == 8
    assert move(world, 0.1) == []


def test_the_old_replicas_are_served_until_they_are_deleted_at_the_end(world: MemoryWorld) -> None:
    reader = world.files.open("/a.log")
    moves = world.files.upkeep.rebalance(threshold=0.02)
    began_s = world.clock.monotonic_s()
    assert next(moves).why_not == ""
    world.volumes[SPARE].is_up = False
    assert reader.read() == TEXT
    world.volumes[SPARE].is_up = True
    list(moves)
    assert world.clock.monotonic_s() - began_s == load_settings().lease_hard_s
    assert world.problems() == set()


@pytest.mark.soak
def test_a_death_at_any_step_leaves_each_block_with_as_many_good_replicas(world: MemoryWorld) -> None:
    for die_at in itertools.count():
        steps = itertools.count()

        def die(point: str, die_at: int = die_at, steps: Iterator[int] = steps) -> None:
            if not point.startswith(("copy.", "left-over.")):
                return
            FAILPOINTS.observer = None
            check_whole(world)
            FAILPOINTS.observer = die
            if next(steps) == die_at:
                raise Crash(point)

        FAILPOINTS.observer = die
        try:
            move(world)
        except Crash:
            is_over = False
        else:
            is_over = True
        FAILPOINTS.observer = None
        check_whole(world)
        assert world.files.open("/a.log").read() == TEXT
        world.files.upkeep.delete_left_over()
        assert world.problems() == set()
        move(world)
        assert sum(used(world)) == 69
        if is_over:
            assert die_at > 20
            return
        restore_shares(world)


def restore_shares(world: MemoryWorld) -> None:
    """Move blocks back: the new volume is too full for a while."""
    world.volumes[SPARE].capacity_bytes = 1
    for volume in (world.volumes[name] for name in NAMES):
        volume.capacity_bytes = 1000
    move(world)
    for volume in world.volumes.values():
        volume.capacity_bytes = 100


def test_a_block_that_is_written_is_not_moved_and_one_that_is_opened_meanwhile_stays(
    world: MemoryWorld,
) -> None:
    *_, last = world.blocks()
    writer = world.process(*NAMES).append("/b.log")
    writer.write(b"d")
    writer.flush()
    assert last not in {one.block for one in move(world)}
    writer.close()
    others = world.process(*NAMES)

    def append(point: str) -> None:
        if point == "copy.entry.before":
            FAILPOINTS.observer = None
            with others.append("/a.log") as opened:
                opened.write(b"more")

    world.volumes[SPARE].stored.clear()
    world.files.upkeep.report()
    list(world.files.upkeep.re_replicate())
    FAILPOINTS.observer = append
    move(world)
    world.files.upkeep.delete_left_over()
    assert world.files.open("/a.log").read() == TEXT + b"more"
    assert world.files.open("/b.log").read() == b"abcd"
    assert all(len(world.members(block)) == 3 for block in world.blocks())
    others.close()


def test_two_replicas_of_a_block_are_not_moved_to_one_machine(world: MemoryWorld) -> None:
    world.journal.apply(RegisterVolume(volume=SPARE, url="https://volume-1.example:2"))
    assert {one.source for one in move(world, dry_run=True)} == {NAMES[1]}


def test_a_volume_that_is_away_full_or_without_a_limit_takes_no_part(world: MemoryWorld) -> None:
    world.volumes[SPARE].is_up = False
    assert move(world) == []
    world.volumes[SPARE].is_up = True
    world.volumes[SPARE].capacity_bytes = UNLIMITED_BYTES
    assert move(world) == []
    world.volumes[SPARE].capacity_bytes = 5  # a block of 3 bytes would make it the fullest one
    assert move(world) == []


def test_nothing_is_moved_in_safe_mode_or_with_bad_limits(world: MemoryWorld) -> None:
    for threshold in (0, 1, -1):
        with pytest.raises(InvalidInputError, match="threshold"):
            move(world, threshold)
    with pytest.raises(InvalidInputError, match="bytes_per_s"):
        world.files.upkeep.rebalance(bytes_per_s=0)
    add_operators_reason(world.journal, "a test")
    with pytest.raises(SafeModeError):
        move(world)
    assert used(world) == [23, 23, 23, 0]


def test_an_entry_moves_from_a_good_member_only(world: MemoryWorld) -> None:
    first, *_ = world.blocks()
    with world.journal.reading() as reading:
        row, now_s = reading.get(Block, first), reading.now_s()
    assert row is not None

    def entry(instead_of: str, *, is_move: bool = True, most: int = 3) -> AddMember:
        return AddMember(
            block=first,
            volume=SPARE,
            generation=row.stamp,
            instead_of=instead_of,
            most=most,
            until_s=now_s + 60,
            is_move=is_move,
        )

    with pytest.raises(ConflictError, match="no member without a fault"):
        world.journal.apply(entry(SPARE))
    with pytest.raises(ConflictError, match="no member with a fault"):
        world.journal.apply(entry(NAMES[0], is_move=False))
    world.volumes[NAMES[0]].stored[first].data.pop()
    world.files.upkeep.report()
    with pytest.raises(ConflictError, match="no member without a fault"):
        world.journal.apply(entry(NAMES[0]))
    world.journal.apply(entry(NAMES[1]))
    assert world.members(first) == [NAMES[0], NAMES[2], SPARE]
