"""HDFS Append and Truncates, section "Cluster Rebalancing": a block that is being written is not moved."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lockgate.storage_core.errors import ConflictError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.namespace.member_marks import AddMember
from lockgate.storage_core.files.namespace.rows import Block
from lockgate.storage_core.files.volumes.replica import BlockId
from tests.support.files.memory_world import NAMES, SPARE, MemoryWorld, world_with_a_spare_volume
from tests.support.journal.checkpoints import JournalWorld


@pytest.fixture
def world(journals: JournalWorld) -> Iterator[MemoryWorld]:
    with world_with_a_spare_volume(journals, capacity_bytes=200) as world:
        yield world


def moved(world: MemoryWorld) -> list[tuple[BlockId, str]]:
    return [(one.block, one.why_not) for one in world.files.upkeep.rebalance(threshold=0.01)]


def test_a_block_that_is_written_is_left_out(world: MemoryWorld) -> None:
    """HDFS: a request to move a block that is being written is rejected."""
    writer = world.process(*NAMES).append("/b.log")
    writer.write(b"d")
    writer.flush()
    *_, last = world.blocks()
    found = moved(world)
    assert found
    assert last not in dict(found)
    writer.write(b"e")
    writer.close()
    assert world.files.open("/b.log").read() == b"abcde"


def test_its_entry_is_refused(world: MemoryWorld) -> None:
    """HDFS: the datanode rejects it. Here the journal does, whose entry would be the move."""
    writer = world.process(*NAMES).append("/b.log")
    writer.write(b"d")
    writer.flush()
    *_, last = world.blocks()
    with world.journal.reading() as reading:
        row, now_s = reading.get(Block, last), reading.now_s()
    assert row is not None
    move = AddMember(
        block=last,
        volume=SPARE,
        generation=row.stamp,
        instead_of=NAMES[0],
        most=3,
        until_s=now_s + 60,
        is_move=True,
    )
    with pytest.raises(ConflictError, match="is being written"):
        world.journal.apply(move)
    writer.close()
    assert world.members(last) == [*NAMES]


def test_a_block_that_is_opened_between_the_copy_and_the_entry_stays_where_it_is(world: MemoryWorld) -> None:
    """HDFS: as above. Here a move is refused if its block has a newer stamp."""
    others = world.process(*NAMES)
    *_, last = world.blocks()
    copied: list[BlockId] = []

    def append(point: str) -> None:
        if point == "copy.entry.before" and last in world.volumes[SPARE].stored and not copied:
            copied.append(last)
            with others.append("/b.log") as writer:
                writer.write(b"d")

    FAILPOINTS.observer = append
    found = dict(moved(world))
    FAILPOINTS.observer = None
    others.close()
    if last in found:
        assert "has changed since" in found[last]
    assert (copied != []) == (last in found)
    assert SPARE not in world.members(last) or not copied
    world.files.upkeep.delete_left_over()
    assert all(len(world.members(block)) == 3 for block in world.blocks())
