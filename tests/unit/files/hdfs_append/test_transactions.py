"""HDFS Append and Truncates, section "New Types of Transactions": entries, and what a fold refuses."""

from __future__ import annotations

import msgspec
import pytest

from lockgate.storage_core.errors import (
    ConflictError,
    FencedError,
    InvalidInputError,
    ObjectNotFoundError,
)
from lockgate.storage_core.files.blocks import BlockRecord, Opened
from lockgate.storage_core.files.namespace.file_blocks import AddBlock, OpenFile
from lockgate.storage_core.files.namespace.journal_blocks import JournalBlocks
from lockgate.storage_core.files.namespace.rows import Block
from lockgate.storage_core.files.volumes.protocol import VolumeId
from lockgate.storage_core.files.volumes.replica import ReplicaState
from lockgate.storage_core.ids import file_resource
from lockgate.storage_core.journal import Mutation, Refused, Stamp
from tests.support.files.file_world import TEXT, FileWorld


def test_an_entry_without_the_lease_changes_nothing(world: FileWorld) -> None:
    """HDFS: records of an open file. Here each names the lease of its writer."""
    files = world.process()
    writer = files.create("/a.log")
    resource = file_resource(files.status("/a.log").inode)
    op = AddBlock(resource=resource, stamp=Stamp(1, 999), members=tuple(world.volumes))

    (outcome,) = world.journal.write([Mutation(op=op)])
    assert isinstance(outcome, Refused)
    assert isinstance(outcome.error, FencedError)
    assert world.rows(Block) == []
    writer.close()


def opened_to_append(world: FileWorld) -> Opened:
    """Open the file with an entry of its own."""
    op = OpenFile(path="/a.log", mode="append", holder="h", soft_s=30, hard_s=120)
    opened: Opened = world.journal.apply(op).result
    return opened


def test_of_two_reseals_only_the_newer_is_committed(world: FileWorld) -> None:
    """HDFS: a stamp is taken first, and logged with the file. Here the commit compares it."""
    files = world.process()
    with files.create("/a.log") as writer:
        writer.write(b"one")
    blocks = JournalBlocks(world.journal, opened_to_append(world))
    (record,) = blocks.records()
    older, newer = blocks.stamp(record.block, 2), blocks.stamp(record.block, 1)
    assert (older.target_bytes, newer.target_bytes) == (2, 2)  # the first target stays until a commit

    def commit(stamp: Stamp, members: tuple[VolumeId, ...]) -> BlockRecord:
        return blocks.commit(BlockRecord(record.block, stamp, members, 2, ReplicaState.SEALED))

    for stamp in (record.stamp, older.newest):
        with pytest.raises(FencedError, match="another reseal has begun"):
            commit(stamp, record.members)
    with pytest.raises(InvalidInputError, match="its members are"):
        commit(newer.newest, (*record.members, VolumeId("unknown")))
    done = commit(newer.newest, record.members[:2])
    assert (done.stamp, done.members, done.target_bytes) == (newer.newest, record.members[:2], None)
    assert files.status("/a.log").length_bytes == 2


def test_a_block_is_added_after_a_sealed_one_only_and_on_registered_volumes(world: FileWorld) -> None:
    """HDFS: a record has the whole list of blocks. Here a block is an entry."""
    files = world.process()
    with files.create("/a.log") as writer:
        writer.write(b"one")
    opened = opened_to_append(world)

    def blocks(*members: str) -> JournalBlocks:
        return JournalBlocks(world.journal, opened, lambda: tuple(map(VolumeId, members)))

    known = next(iter(world.volumes))
    with pytest.raises(ObjectNotFoundError, match="volume unknown is not registered"):
        blocks("unknown").add()
    for members in ((), (known, known)):
        with pytest.raises(InvalidInputError, match="distinct members"):
            blocks(*members).add()
    added = blocks(known).add()
    with pytest.raises(ConflictError, match="is not sealed"):
        blocks(known).add()
    with pytest.raises(ConflictError, match="the file stays open"):
        blocks(known).close()
    assert added.length_bytes == 0


def test_the_entry_of_a_block_seals_the_one_before_at_its_newest_stamp(world: FileWorld) -> None:
    """HDFS: a full block is confirmed by its datanodes. Here the entry of the next block commits it."""
    world.write(world.process(), "/a.log", TEXT[:12])
    first, last = world.records("/a.log")
    blocks = JournalBlocks(world.journal, opened_to_append(world), lambda: first.members)

    def add(before: BlockRecord) -> BlockRecord:
        return blocks.add(msgspec.structs.replace(before, length_bytes=2))

    with pytest.raises(ConflictError, match="is not the last one"):
        add(first)
    with pytest.raises(FencedError, match="another reseal has begun"):
        add(msgspec.structs.replace(last, stamp=Stamp(1, 1)))
    assert world.records("/a.log")[:1] == (first,)
    stamped = blocks.record(last.block)
    added = add(msgspec.structs.replace(stamped, stamp=stamped.newest))
    assert [one.length_bytes for one in blocks.records()] == [first.length_bytes, 2, 0]
    assert blocks.records()[2] == added


def test_open_file_and_close_file(world: FileWorld) -> None:
    """HDFS: OpenFile and CloseFile have the list of blocks. Here they add, stamp and seal the last one."""
    files = world.process()
    world.write(files, "/first.log")  # it registers the volumes
    before = len(world.entries())
    world.write(files, "/a.log", TEXT[:12])
    assert world.entries()[before:] == ["open-file", "add-block", "close-file"]
    before = len(world.entries())
    with files.append("/a.log") as writer:
        writer.write(b"x")
    assert world.entries()[before:] == ["open-file", "commit-block", "close-file"]
    before = len(world.entries())
    world.write(files, "/small.log", b"x")
    assert world.entries()[before:] == ["open-file", "close-file"]
    before = len(world.entries())
    with files.create("/empty.log"):
        pass
    assert world.entries()[before:] == ["open-file", "close-file"]
    assert files.status("/empty.log").blocks == 0


def test_store_generation_stamp(world: FileWorld) -> None:
    """HDFS: it persists the counter. Here a stamp is that of its entry, so that there is no counter."""
    world.write(world.process(), "/a.log")
    with world.journal.reading() as reading:
        made = {
            Stamp(entry.epoch, entry.sequence)
            for entry in reading.entries(0, 100)
            if entry.op in {"open-file", "add-block"}
        }
    assert {record.stamp for record in world.records("/a.log")} <= made
