"""HDFS Append and Truncates, section "Upgrades": replicas from before stamps, and from newer programs."""

from __future__ import annotations

import struct

import pytest

from lockgate.storage_core.errors import RecordVersionError
from lockgate.storage_core.files.replicas.comparison import Problem
from lockgate.storage_core.files.volumes.replica import BlockId
from lockgate.storage_core.stamp import Stamp
from tests.support.files.file_world import FileWorld


def test_a_new_journal_begins_above_the_stamp_of_old_blocks(world: FileWorld) -> None:
    """HDFS: the stamp in the image begins at 1, and existing blocks have 0. Here (1, 0) and (0, 0)."""
    world.write(world.process(), "/a.log", b"one")
    assert all(record.stamp.epoch >= 1 for record in world.records("/a.log"))


def test_existing_blocks_have_the_stamp_0_and_are_read_and_appended(
    world: FileWorld,
) -> None:
    """HDFS: space for the stamp is made in each header. Here each replica has a stamp from its first byte."""
    world.write(world.process(block_bytes=100), "/a.log", b"one")
    (record,) = world.records("/a.log")
    for volume in world.opened.values():
        volume.put(record.block, Stamp(), b"one")
    world.journals.run_sql("UPDATE file_block SET epoch = 0, sequence = 0")

    assert world.read() == b"one"
    with world.process(block_bytes=100).append("/a.log") as writer:
        writer.write(b"two")
    (after,) = world.records("/a.log")
    assert after.stamp > Stamp(1, 0)
    assert {volume.stat(record.block).stamp for volume in world.opened.values()} == {after.stamp}
    assert world.read() == b"onetwo"


def test_a_replica_without_a_stamp_of_a_block_with_one_is_stale_and_not_deleted(world: FileWorld) -> None:
    """HDFS: prehistoric blocks are ignored. Here one without a stamp is also left to the operator."""
    world.write(world.process(block_bytes=100), "/a.log", b"one")
    world.volumes[world.names[0]].create(BlockId(2), Stamp())
    assert world.read() == b"one"
    done = world.process().upkeep.repair()
    assert (done.left_over, done.deleted) == (1, 0)


def test_a_replica_of_a_newer_program_is_refused_unchanged_and_not_taken_for_lost(world: FileWorld) -> None:
    """HDFS: the cluster is upgraded together. Here a volume refuses what a newer program wrote."""
    world.write(world.process(block_bytes=100), "/a.log", b"one")
    (record,) = world.records("/a.log")
    log = world.opened[world.names[0]].log(record.block)
    newer = log.read_bytes()[:4] + struct.pack(">HH", 9, 0xFFFF - 9) + log.read_bytes()[8:]
    log.write_bytes(newer)
    files = world.process()

    volume = world.volumes[world.names[0]]
    for call in (
        lambda: volume.stat(record.block),
        lambda: volume.replicas(None, 1),
        lambda: volume.store(record.block, record.stamp, [b"x"]),
    ):
        with pytest.raises(RecordVersionError, match="version 9"):
            call()
    assert [one.problem for one in files.upkeep.check().findings()] == [Problem.UNREACHABLE]
    assert files.open("/a.log").read() == b"one"
    assert (files.upkeep.repair().marked, world.records("/a.log")) == (0, (record,))
    assert log.read_bytes() == newer
    with pytest.raises(RecordVersionError, match="version 9"):
        volume.fence(record.block, Stamp(9, 9), record.stamp)
