"""HDFS Append and Truncates, section "The Writer": its steps 1 to 6."""

from __future__ import annotations

import pytest

from lockgate.storage_core.errors import ObjectNotFoundError, StaleReplicaError, StoreUnavailableError
from lockgate.storage_core.files.blocks import BlockRecord
from lockgate.storage_core.files.files import FileWriter
from lockgate.storage_core.files.namespace.rows import Block, Member
from lockgate.storage_core.files.volumes.protocol import VolumeId
from lockgate.storage_core.files.volumes.replica import ReplicaState
from tests.support.commit.destination import Crash
from tests.support.files.file_world import TEXT, FileWorld, at


def test_step_1_a_block_has_a_new_id_a_new_stamp_and_locations(world: FileWorld) -> None:
    """HDFS: the namenode gives them out when a file is created."""
    world.write(world.process(), "/before.log")
    before, newest = [row.block for row in world.rows(Block)], world.journal.status().stamp
    writer = world.process().create("/a.log")

    (record,) = world.records("/a.log")
    assert record.block > max(before)
    assert record.stamp > newest
    assert set(record.members) == set(world.names)
    writer.close()


def test_step_1_an_append_opens_the_last_block_at_a_new_stamp(world: FileWorld) -> None:
    """HDFS: a file that is opened to append gets a new stamp, too."""
    world.write(world.process(), "/a.log", TEXT)
    *first, before = world.records("/a.log")
    writer = world.process().append("/a.log")
    *others, last = world.records("/a.log")
    assert others == first
    assert (last.block, last.state) == (before.block, ReplicaState.WRITING)
    assert last.stamp > before.stamp
    writer.close()


def test_step_2_replicas_are_created_with_the_stamp_after_the_journal_has_the_block(world: FileWorld) -> None:
    """HDFS: datanodes create the replica, then the namenode logs the block. Here the journal comes first."""
    seen: list[BlockRecord] = []

    def look() -> None:
        (record,) = world.records("/a.log")
        assert all(volume.stat(record.block) is None for volume in world.volumes.values())
        seen.append(record)

    writer = world.process().create("/a.log")
    with at("pipeline.create.before", look):
        writer.write(b"x")
    (record,) = seen
    for volume in world.volumes.values():
        assert volume.log(record.block).suffix == ".log"  # in its place, not in a temporary one
        found = volume.stat(record.block)
        assert found is not None
        assert (found.stamp, found.length_bytes) == (record.stamp, 0)
    writer.close()


@pytest.mark.parametrize("is_first", [True, False])
def test_step_2_a_client_that_dies_before_the_replicas_exist_leaves_an_empty_file(
    world: FileWorld, is_first: bool
) -> None:
    """HDFS: such a block may get lost. Here it is in the journal, and its recovery finds no bytes."""

    def die() -> None:
        raise Crash

    files = world.process()
    if not is_first:
        world.write(files, "/first.log")  # its volumes are registered: the next creation adds the block
    writer = files.create("/a.log")
    assert len(world.records("/a.log")) == (0 if is_first else 1)
    with pytest.raises(Crash), at("pipeline.create.before", die):
        writer.write(b"x")
    files.close()
    assert world.recover() == []
    assert world.read() == b""
    assert world.records("/a.log") == ()


def test_step_2_an_error_at_a_creation_is_handled_as_in_step_3a(world: FileWorld) -> None:
    """HDFS: in case of an error, go to step 3a."""
    bad = world.names[2]
    writer = world.process().create("/a.log")
    away = {}
    with at("pipeline.create.before", lambda: away.update({bad: world.volumes.pop(bad)})):
        writer.write(b"abc")
    writer.close()
    (record,) = world.records("/a.log")
    assert set(record.members) == set(world.names[:2])
    assert world.read() == b"abc"


class Repair:
    """A pipeline of which one member failed during a flush."""

    def __init__(self, world: FileWorld, bad: int) -> None:
        self.bad: VolumeId = world.names[bad]
        self.writer: FileWriter = world.process(block_bytes=100).create("/a.log")
        self.writer.write(b"one")
        self.writer.flush()
        (self.before,) = world.records("/a.log")
        self.entries = len(world.entries())
        with world.without(self.bad):
            self.writer.write(b"two")
            self.writer.flush()
            (self.after,) = world.records("/a.log")


@pytest.fixture(params=[0, 1, 2])
def repair(world: FileWorld, request: pytest.FixtureRequest) -> Repair:
    return Repair(world, request.param)


def test_step_3_data_goes_to_all_members(world: FileWorld) -> None:
    """HDFS: each datanode forwards data and reports to the next one. Here the writer sends to all at once."""
    writer = world.begin(TEXT)
    (record,) = world.records("/a.log")
    for volume in world.volumes.values():
        assert volume.read(record.block, record.stamp, 0, 100) == TEXT
    writer.close()


def test_step_3a_the_bad_member_is_removed_from_the_pipeline(repair: Repair) -> None:
    """HDFS: the client removes the bad datanode."""
    assert set(repair.after.members) == set(repair.before.members) - {repair.bad}


def test_step_3b_and_3c_the_journal_gives_a_new_stamp_and_drops_the_location(
    world: FileWorld, repair: Repair
) -> None:
    """HDFS: the namenode gives a new stamp and forgets the location. Here by two entries."""
    assert repair.after.stamp > repair.before.stamp
    assert world.entries()[repair.entries :] == ["stamp-block", "commit-block"]
    assert {row.volume for row in world.rows(Member)} == set(repair.after.members)


def test_step_3d_and_3e_the_good_members_persist_the_new_stamp(world: FileWorld, repair: Repair) -> None:
    """HDFS: the good datanodes get the new stamp and persist it; the bad one keeps the old one."""
    world.restart_volumes()
    for name, volume in world.volumes.items():
        found = volume.stat(repair.after.block)
        assert found is not None
        assert found.stamp == (repair.before if name == repair.bad else repair.after).stamp


def test_step_3f_the_journal_has_the_repair_when_the_flush_returns(world: FileWorld, repair: Repair) -> None:
    """HDFS: the client has the new stamp logged by a flush request. Here the commit is in the journal."""
    world.restart_journal()
    (record,) = world.records("/a.log")
    assert (record, record.pending) == (repair.after, None)
    assert world.read() == b"onetwo"


def test_step_3g_the_client_continues(world: FileWorld, repair: Repair) -> None:
    """HDFS: the client goes back to step 3; another member may fail later."""
    with world.without(repair.after.members[0]):
        repair.writer.write(b"three")
        repair.writer.close()
    (record,) = world.records("/a.log")
    assert record.members == repair.after.members[1:]
    assert world.read() == b"onetwothree"


def test_step_4_a_full_block_is_confirmed(world: FileWorld) -> None:
    """HDFS: datanodes confirm a full block to the namenode. Here its writer seals and commits it."""
    writer = world.process(block_bytes=8).create("/a.log")
    writer.write(TEXT[:12])
    first, second = world.records("/a.log")
    assert (first.state, first.length_bytes) == (ReplicaState.SEALED, 8)
    assert second.state is ReplicaState.WRITING
    for volume in world.volumes.values():
        found = volume.stat(first.block)
        assert found is not None
        assert (found.state, found.length_bytes, found.durable_bytes) == (ReplicaState.SEALED, 8, 8)
    writer.close()


def test_step_5_a_replica_with_a_lesser_stamp_is_no_location_and_is_deleted(
    world: FileWorld, repair: Repair
) -> None:
    """HDFS: the namenode refuses the confirmation and sends a delete. Here `clean` deletes it later."""
    repair.writer.close()
    files = world.process()
    (record,) = world.records("/a.log")
    assert repair.bad not in record.members
    with pytest.raises(StaleReplicaError):
        world.volumes[repair.bad].read(record.block, record.stamp, 0, 1)
    assert files.upkeep.repair().deleted == 1
    assert world.volumes[repair.bad].stat(record.block) is None


def test_step_6_a_close_finds_all_replicas_of_each_block_at_one_stamp(world: FileWorld) -> None:
    """HDFS: the namenode verifies at the close that all replicas have one stamp. Here their lengths too."""
    world.write(world.process(), "/a.log")
    assert world.entries()[-1] == "close-file"
    world.check_sealed("/a.log", TEXT)


def test_step_6_a_member_that_fails_at_the_close_is_dropped_first(world: FileWorld) -> None:
    """HDFS: all replicas have one stamp at the close. Here one that cannot get it is no replica any more."""
    bad = world.names[1]
    writer = world.begin(b"one")
    away = {}
    with at("pipeline.finish.before", lambda: away.update({bad: world.volumes.pop(bad)})):
        writer.close()
    world.volumes.update(away)
    (record,) = world.records("/a.log")
    assert set(record.members) == {world.names[0], world.names[2]}
    assert world.read() == b"one"


def test_step_6_a_close_without_a_member_leaves_the_file_open(world: FileWorld) -> None:
    """HDFS: a file is closed when its replicas were verified. Here a recovery does it later."""
    files = world.process(block_bytes=100)
    writer = world.begin(b"one", files)
    with world.without(*world.names), pytest.raises(StoreUnavailableError):
        writer.close()
    assert files.status("/a.log").is_open
    assert world.recover() == []
    assert world.read() == b"one"
    with pytest.raises(ObjectNotFoundError):
        files.status("/b.log")
