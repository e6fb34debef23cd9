"""HDFS Append and Truncates, section "Lease recovery": which replicas count, and which length."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest

from lockgate.storage_core.errors import (
    FencedError,
    LeaseHeldError,
)
from tests.support.commit.destination import crash_at
from tests.support.files.file_world import TEXT, FileWorld
from tests.support.soak import rounds


def test_a_file_whose_writer_ended_is_recovered_with_all_flushed_bytes(world: FileWorld) -> None:
    """HDFS: when the lease has expired, the file is closed, and its lease record deleted."""
    ended = world.process()
    writer = world.begin(TEXT, ended)
    ended.close()
    files = world.process()
    with pytest.raises(LeaseHeldError, match="lapses in"):
        files.recover("/a.log")
    world.lapse()

    (found,) = files.recovery.recover_lapsed()
    assert (found.path, found.length_bytes, found.why_not) == ("/a.log", 20, "")
    assert files.open("/a.log").read() == TEXT
    assert files.recover("/a.log") is None
    assert not files.status("/a.log").is_open
    assert world.leases() == []
    assert world.entries()[-1] == "close-file"
    writer.write(b"late")
    with pytest.raises(FencedError):
        writer.flush()


def test_an_append_recovers_a_file_whose_lease_has_lapsed(world: FileWorld) -> None:
    """HDFS: the namenode recovers the lease. Here also the next writer, at once."""
    world.leave_open("/a.log", b"one")
    files = world.process()
    world.lapse()
    with files.append("/a.log") as again:
        again.write(b"two")

    assert files.open("/a.log").read() == b"onetwo"


def test_a_file_is_not_recovered_while_its_members_do_not_answer(world: FileWorld) -> None:
    """HDFS: the namenode asks the datanodes for their stamps. Here a recovery waits for those that matter."""
    world.leave_open("/a.log", b"one")
    files = world.process()
    world.lapse()
    reached = dict(world.volumes)
    world.volumes.clear()
    (found,) = files.recovery.recover_lapsed()
    assert found.length_bytes is None
    assert "nothing was committed" in found.why_not
    world.volumes.update(reached)

    (found,) = world.process().recovery.recover_lapsed()
    assert found.length_bytes == 3  # at once: the recovery that failed gave its lease back


def check_members(world: FileWorld, numbers: set[int], data: bytes) -> None:
    """Check that these volumes are the members of the file, and have these bytes at one stamp."""
    (record,) = world.records("/a.log")
    assert set(record.members) == {world.names[number] for number in numbers}
    assert record.length_bytes == len(data)
    for member in record.members:
        assert world.volumes[member].read(record.block, record.stamp, 0, 100) == data


def test_a_replica_with_a_greater_stamp_is_good(world: FileWorld) -> None:
    """HDFS: it has the data of the last write. Here an earlier recovery died after its first fence."""
    world.leave_open("/a.log", b"one")
    (before,) = world.records("/a.log")
    files = world.process()
    world.lapse()
    assert crash_at(0, files.recovery.recover_lapsed, "reseal.fence.after")
    files.close()
    found = [volume.stat(before.block) for volume in world.volumes.values()]
    assert sum(one is not None and one.stamp > before.stamp for one in found) == 1

    assert world.recover() == []
    check_members(world, {0, 1, 2}, b"one")


def test_a_replica_with_a_lesser_stamp_does_not_count(world: FileWorld, tmp_path: Path) -> None:
    """HDFS: a replica counts if its stamp is at least the namenode's. Here one is a backup."""
    world.write(world.process(block_bytes=100), "/a.log", b"one")
    shutil.copytree(world.opened[world.names[0]].folder, tmp_path / "old")
    files = world.process(block_bytes=100)
    writer = files.append("/a.log")
    writer.write(b"two")
    writer.flush()
    files.close()
    shutil.rmtree(world.opened[world.names[0]].folder)
    shutil.copytree(tmp_path / "old", world.opened[world.names[0]].folder)
    world.restart_volumes()

    assert world.recover() == []
    check_members(world, {1, 2}, b"onetwo")


def test_the_size_of_the_largest_undamaged_replica_is_chosen(world: FileWorld) -> None:
    """HDFS: of three ways it takes the minimum. Here the maximum: the others get the bytes that they lack."""
    world.leave_open("/a.log", b"one")
    (record,) = world.records("/a.log")
    for name, more in zip(world.names, (b"", b"t", b"two"), strict=True):
        world.volumes[name].append(record.block, record.stamp, 3, more)
    assert world.recover() == []
    check_members(world, {0, 1, 2}, b"onetwo")


def test_a_replica_that_lost_bytes_does_not_shrink_the_file(world: FileWorld) -> None:
    """HDFS: the minimum of all would lose flushed bytes. Here it gets them from the others."""
    world.leave_open("/a.log", b"one")
    (record,) = world.records("/a.log")
    world.opened[world.names[0]].cut(record.block, 1)
    assert world.recover() == []
    check_members(world, {0, 1, 2}, b"one")


def test_the_connections_of_the_old_client_are_closed(world: FileWorld) -> None:
    """HDFS: datanodes close its connections. Here they refuse its stamp, if it was stopped, too."""
    stopped = world.process(block_bytes=100)
    writer = world.begin(b"one", stopped)
    (before,) = world.records("/a.log")
    writer.write(b"two")
    assert world.recover() == []  # it has not renewed for the limit
    for volume in world.volumes.values():
        with pytest.raises(FencedError):
            volume.flush(before.block, before.stamp)
    with pytest.raises(FencedError):
        writer.flush()
    check_members(world, {0, 1, 2}, b"one")
    stopped.close()


def test_a_recovery_that_dies_at_any_step_is_taken_up_by_the_next(world: FileWorld) -> None:
    """HDFS: trim and stamp may be done in any order. Here each of the steps may be the last of a recovery."""
    for die_at in itertools.count(step=rounds(3, 1)):
        path = f"/{die_at}.log"
        world.leave_open(path, b"one")
        dying = world.process()
        world.lapse()
        died = crash_at(die_at, dying.recovery.recover_lapsed)
        dying.close()
        assert died is None or world.recover() == []
        assert world.process().open(path).read() == b"one"
        assert not world.process().status(path).is_open
        assert [len(record.members) for record in world.records(path)] == [3]
        if died is None:
            assert die_at > 15
            return
