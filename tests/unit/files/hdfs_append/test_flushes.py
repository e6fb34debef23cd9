"""HDFS Append and Truncates, section "BlockId allocations and Client flushes": what a flush costs."""

from __future__ import annotations

from tests.support.files.file_world import TEXT, FileWorld


def test_a_flush_after_a_new_block_has_its_metadata_in_the_journal(world: FileWorld) -> None:
    """HDFS: the first flush after an allocation syncs the log. Here it commits the length of the block."""
    writer = world.begin(b"x", block_bytes=8)
    before = len(world.entries())
    writer.write(TEXT[1:9])
    allocated = world.entries()[before:]
    assert allocated == ["add-block"]
    writer.flush()
    writer.flush()
    assert world.entries()[before:] == [*allocated, "commit-block"]
    writer.close()


def test_an_allocated_block_is_not_lost_with_the_journals_process(world: FileWorld) -> None:
    """HDFS: a block that was not flushed may get lost. Here its entry is durable at once."""
    files = world.process()
    writer = files.create("/a.log")
    writer.write(b"x")
    (record,) = world.records("/a.log")
    files.close()
    world.restart_journal()
    assert world.records("/a.log") == (record,)
    assert world.recover() == []
    assert world.read() == b""  # it was not flushed


def test_a_chunk_that_is_filled_in_part_is_flushed_and_continued(world: FileWorld) -> None:
    """HDFS: a partial chunk is written over, with a new checksum. Here each flush is a frame of its own."""
    files = world.process(block_bytes=100)
    writer = files.create("/a.log")
    for number in range(len(TEXT)):
        writer.write(TEXT[number : number + 1])
        writer.flush()
        assert files.open("/a.log").read() == TEXT[: number + 1]
    files.close()
    world.restart_volumes()
    assert world.read() == TEXT
    assert world.recover() == []
    assert list(world.process().upkeep.check().findings()) == []


def test_a_crash_in_the_middle_of_a_partial_chunk_leaves_what_was_flushed_before(world: FileWorld) -> None:
    """HDFS: chunk and checksum are overwritten together. Here nothing that was flushed is overwritten."""
    world.leave_open("/a.log", b"abc")
    (record,) = world.records("/a.log")
    for volume in world.volumes.values():
        volume.append(record.block, record.stamp, 3, b"def")
    for size, volume in enumerate(world.opened.values(), start=1):
        volume.cut(record.block, size)
    assert world.read() == b"abc"
    assert world.recover() == []
    assert world.read() == b"abc"
