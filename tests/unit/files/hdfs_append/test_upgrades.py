"""HDFS Append and Truncates, section "Upgrades": replicas from before stamps, and from newer programs."""

from __future__ import annotations

import struct

import pytest

from lockgate.storage_core.errors import RecordVersionError
from lockgate.storage_core.files.replicas.left_over import LeftOver
from lockgate.storage_core.files.volumes.replica import BlockId, ReplicaState
from lockgate.storage_core.stamp import Stamp
from tests.support.files.file_world import FileWorld
from tests.support.files.older_replicas import make_older, older_head

SEALED = list(ReplicaState).index(ReplicaState.SEALED)


def downgrade(world: FileWorld, block: BlockId, length: int) -> None:
    """Put a block back to version 0 of the format, which has no stamp, on all volumes."""
    world.stop_volumes()
    for folder in world.folders:
        make_older(folder, block)
        path = folder / f"{block:020d}.head"
        path.write_bytes(older_head(0, struct.pack(">QBQ", block, SEALED, length)))
    world.start_volumes()


def test_a_new_journal_begins_above_the_stamp_of_old_blocks(world: FileWorld) -> None:
    """HDFS: the stamp in the image begins at 1, and existing blocks have 0. Here (1, 0) and (0, 0)."""
    world.write(world.process(), "/a.log", b"one")
    assert all(record.stamp.epoch >= 1 for record in world.records("/a.log"))


def test_existing_blocks_have_the_stamp_0_and_are_read_appended_and_upgraded(world: FileWorld) -> None:
    """HDFS: space for the stamp is made in each header. Here in place, when a replica is first used."""
    world.write(world.process(block_bytes=100), "/a.log", b"one")
    (record,) = world.records("/a.log")
    downgrade(world, record.block, 3)
    world.journals.run_sql("UPDATE file_block SET epoch = 0, sequence = 0")

    assert world.process().open("/a.log").read() == b"one"
    upgraded = older_head(1, struct.pack(">QQQBQ", record.block, 0, 0, SEALED, 3))
    for name, folder in zip(world.names, world.folders, strict=True):
        assert world.volumes[name].stat(record.block) is not None
        assert (folder / f"{record.block:020d}.head").read_bytes() == upgraded
    with world.process(block_bytes=100).append("/a.log") as writer:
        writer.write(b"two")
    (after,) = world.records("/a.log")
    assert after.stamp > Stamp(1, 0)
    for name, folder in zip(world.names, world.folders, strict=True):
        stat = world.volumes[name].stat(record.block)
        assert stat is not None
        assert stat.stamp == after.stamp
        header = struct.pack(">QQQBQ", record.block, after.stamp.epoch, after.stamp.sequence, SEALED, 6)
        assert (folder / f"{record.block:020d}.head").read_bytes() == older_head(1, header)
    assert world.process().open("/a.log").read() == b"onetwo"


def test_a_replica_without_a_stamp_of_a_block_with_one_is_stale_and_not_deleted(world: FileWorld) -> None:
    """HDFS: prehistoric blocks are ignored. Here one without a stamp is also left to the operator."""
    world.write(world.process(block_bytes=100), "/a.log", b"one")
    world.volumes[world.names[0]].create(BlockId(2), Stamp())
    assert world.process().open("/a.log").read() == b"one"
    assert world.process().upkeep.delete_left_over() == LeftOver(found=1, kept=1)


def test_a_replica_of_a_newer_program_is_refused_unchanged_and_not_taken_for_lost(world: FileWorld) -> None:
    """HDFS: the cluster is upgraded together. Here a volume refuses what a newer program wrote."""
    world.write(world.process(block_bytes=100), "/a.log", b"one")
    (record,) = world.records("/a.log")
    world.stop_volumes()
    path = world.folders[0] / f"{record.block:020d}.head"
    path.write_bytes(older_head(9, b"?"))
    world.start_volumes()
    files = world.process()

    with pytest.raises(RecordVersionError, match="version 9"):
        world.volumes[world.names[0]].stat(record.block)
    assert sum(one.differences for one in files.upkeep.report()) == 0
    assert files.open("/a.log").read() == b"one"
    assert files.upkeep.delete_left_over() == LeftOver()
    assert world.records("/a.log") == (record,)
    assert path.read_bytes() == older_head(9, b"?")
