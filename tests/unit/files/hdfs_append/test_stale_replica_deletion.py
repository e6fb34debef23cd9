"""HDFS Append and Truncates, section "Stale Replica Deletion", with "GenerationStamp".

The stamp of HDFS is one number of 8 bytes that is counted up; here it is the stamp of a journal entry: an
epoch and a sequence, of 8 bytes each. "GenerationStamp vs Larger BlockIds" is the last test.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lockgate.storage_core.errors import FencedError, StaleReplicaError, StoreUnavailableError
from lockgate.storage_core.files.volumes.replica import Replica
from lockgate.storage_core.stamp import Stamp
from tests.support.files.file_world import FileWorld


def replicas(world: FileWorld, number: int) -> tuple[Replica, ...]:
    return world.volumes[world.names[number]].replicas(None, 100)


def miss_an_update(world: FileWorld) -> None:
    """Write a file of which the first volume misses the second half."""
    writer = world.begin(b"one")
    with world.without(world.names[0]):
        writer.write(b"two")
        writer.close()


def test_a_replica_that_missed_updates_is_not_served_and_is_deleted(world: FileWorld) -> None:
    """HDFS: a stale replica is not served; it is deleted. Here in two passes, judged on the primary."""
    miss_an_update(world)
    (record,) = world.records("/a.log")
    assert [one.length_bytes for one in replicas(world, 0)] == [3]
    assert world.read() == b"onetwo"
    with world.without(*world.names[1:]), pytest.raises(StoreUnavailableError):
        world.read()
    with pytest.raises(StaleReplicaError):
        world.volumes[world.names[0]].read(record.block, record.stamp, 0, 3)
    done = world.process().upkeep.repair()
    assert (done.left_over, done.deleted) == (1, 1)
    assert replicas(world, 0) == ()
    assert world.read() == b"onetwo"


def append(world: FileWorld) -> None:
    world.process(block_bytes=100).append("/a.log")


def truncate(world: FileWorld) -> None:
    world.process(block_bytes=100).truncate("/a.log", 1)


def fail_a_member(world: FileWorld) -> None:
    writer = world.process(block_bytes=100).append("/a.log")
    opened = world.records("/a.log")[0].stamp
    writer.write(b"two")
    with world.without(world.names[0]):
        writer.flush()
    assert world.records("/a.log")[0].stamp > opened


def recover(world: FileWorld) -> None:
    files = world.process(block_bytes=100)
    files.append("/a.log")
    files.close()
    opened = world.records("/a.log")[0].stamp
    assert world.recover() == []
    assert world.records("/a.log")[0].stamp > opened


@pytest.mark.parametrize("act", [append, truncate, fail_a_member, recover])
def test_a_new_stamp_is_needed(world: FileWorld, act: Callable[[FileWorld], None]) -> None:
    """HDFS: a new stamp is needed to append, to truncate, after an error of a writer, and for a recovery."""
    world.write(world.process(block_bytes=100), "/a.log", b"one")
    (before,) = world.records("/a.log")
    newest = world.journal.status().stamp
    act(world)
    (after,) = world.records("/a.log")
    assert after.block == before.block
    assert after.stamp > newest
    for member in after.members:
        found = world.volumes[member].stat(after.block)
        assert found is not None
        assert found.stamp == after.stamp


def test_the_stamp_is_kept_over_restarts_and_no_stamp_is_given_twice(world: FileWorld) -> None:
    """HDFS: the counter is part of the image. Here a restored journal also begins a greater epoch."""
    world.write(world.process(), "/a.log", b"one")
    world.journals.checkpoint()
    newest = world.journal.status().stamp
    world.restart_journal()
    world.write(world.process(), "/b.log", b"one")
    assert world.records("/b.log")[0].stamp > newest
    newest = world.journal.status().stamp
    assert world.journals.restore().stamp > newest  # of the checkpoint, without the entries after it


def test_prehistoric_blocks_of_a_deleted_file_are_detected(world: FileWorld, tmp_path: Path) -> None:
    """HDFS: blocks of a deleted file on a disk that comes back are stale, and are removed."""
    files = world.process()
    world.write(files, "/a.log", b"old")
    (old,) = world.records("/a.log")
    folder = world.opened[world.names[0]].folder / "blocks"
    shutil.copytree(folder, tmp_path / "old")
    files.delete("/a.log")
    files.remove_deleted()
    world.write(files, "/a.log", b"new")
    (new,) = world.records("/a.log")
    shutil.copytree(tmp_path / "old", folder, dirs_exist_ok=True)
    world.restart_volumes()

    assert new.block > old.block
    assert [one.block for one in replicas(world, 0)] == [old.block, new.block]
    assert world.read() == b"new"
    done = world.process().upkeep.repair()
    assert (done.left_over, done.deleted) == (1, 1)
    assert [one.block for one in replicas(world, 0)] == [new.block]


def test_volumes_see_without_the_journal_which_of_two_replicas_of_a_block_is_newer(world: FileWorld) -> None:
    """HDFS: replicas of one block with two stamps are related, which larger block ids would not show."""
    miss_an_update(world)
    (record,) = world.records("/a.log")
    with world.without_journal():
        older, newer = (replicas(world, number)[0] for number in (0, 1))
        assert (older.block, newer.block) == (record.block, record.block)
        assert older.stamp < newer.stamp == record.stamp
        volume = world.volumes[world.names[1]]
        with pytest.raises(FencedError):
            volume.fence(record.block, older.stamp, older.stamp)
        with pytest.raises(FencedError):
            volume.flush(record.block, older.stamp)
        assert not world.volumes[world.names[1]].delete(record.block, older.stamp)
    assert Stamp() < older.stamp
