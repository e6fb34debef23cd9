"""HDFS Append and Truncates, section "BlockId allocations and Client flushes"."""

from __future__ import annotations

from tests.support.files.file_world import FileWorld


def test_a_flush_writes_no_entry_unless_a_block_was_added(world: FileWorld) -> None:
    writer = world.process(block_bytes=100).create("/a.log")
    writer.write(b"one")
    writer.flush()
    before = world.journal.status().stamp
    for _ in range(5):
        writer.write(b"more")
        writer.flush()

    assert world.journal.status().stamp == before
    writer.close()
