"""HDFS Append and Truncates, section "Cluster Rebalancing": a block that is being written is not moved.

Blocks move when a volume is removed: between volumes in use, S3 and file systems even the space.
"""

from __future__ import annotations

import pytest

from lockgate.storage_core.errors import ConflictError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.namespace.members import AddMember
from lockgate.storage_core.files.namespace.rows import Block
from tests.support.files.file_world import NAMES, SPARE, FileWorld


@pytest.fixture
def world(world: FileWorld) -> FileWorld:
    return world.fill(has_spare=True)


def test_a_block_that_is_written_is_left_out_and_its_move_refused(world: FileWorld) -> None:
    """HDFS: a request to move a block that is being written is rejected. Here by the journal, too."""
    writer = world.process(*NAMES).append("/b.log")
    writer.write(b"d")
    writer.flush()
    *_, last = world.blocks()
    world.files.upkeep.remove(NAMES[0])
    assert world.files.upkeep.repair().copied == 3
    assert world.members(last) == [*NAMES]
    with world.journal.reading() as reading:
        row, now_s = reading.get(Block, last), reading.now_s()
    assert row is not None
    move = AddMember(
        block=last,
        volume=SPARE,
        generation=row.stamp,
        instead_of=None,
        most=4,
        until_s=now_s + 60,
    )
    with pytest.raises(ConflictError, match="is being written"):
        world.journal.apply(move)
    writer.write(b"e")
    writer.close()
    world.files.upkeep.repair()
    assert world.members(last) == [*NAMES[1:], SPARE]
    assert world.files.open("/b.log").read() == b"abcde"


def test_a_block_that_is_opened_between_the_copy_and_the_entry_stays_where_it_is(world: FileWorld) -> None:
    """HDFS: as above. Here a move is refused if its block has a newer stamp."""
    others = world.process(*NAMES)
    *_, last = world.blocks()

    def append(point: str) -> None:
        if point == "copy.entry.before" and last in world.opened[SPARE].blocks():
            FAILPOINTS.observer = None
            with others.append("/b.log") as writer:
                writer.write(b"d")

    FAILPOINTS.observer = append
    world.files.upkeep.remove(NAMES[0])
    done = world.files.upkeep.repair()
    others.close()
    assert "has changed since" in done.problems[0]
    assert world.members(last) == [*NAMES]
    assert world.files.upkeep.repair().deleted == 4  # three that moved, and the copy
    assert world.members(last) == [*NAMES[1:], SPARE]
    assert world.files.open("/b.log").read() == b"abcd"
