"""HDFS Append and Truncates, section "Datanodes": what a volume keeps."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from lockgate.storage_core.errors import StaleReplicaError
from lockgate.storage_core.files.namespace.rows import Block, Member
from lockgate.storage_core.files.volumes.directory.directory_volume import DirectoryVolume
from lockgate.storage_core.files.volumes.replica import BlockId, ReplicaState
from lockgate.storage_core.stamp import Stamp
from tests.support.files.file_world import FileWorld

B = BlockId(7)
S1, S2, S3 = Stamp(1, 1), Stamp(2, 1), Stamp(3, 1)


def test_the_stamp_is_kept_in_the_header_of_the_replica(tmp_path: Path) -> None:
    """HDFS: 8 bytes at the end of the meta-file. Here 16, in the name and the header of each stamp's log."""
    with DirectoryVolume(tmp_path) as volume:
        volume.create(B, S1)
        volume.fence(B, S2, S1)
    with DirectoryVolume(tmp_path) as volume:
        found = volume.stat(B)
        assert found is not None
        assert found.stamp == S2
        with pytest.raises(StaleReplicaError):
            volume.read(B, S3, 0, 1)


def test_a_block_report_skips_blocks_that_are_written(world: FileWorld) -> None:
    """HDFS: a block report skips blocks that are being modified."""
    files = world.process(block_bytes=100)
    writer = world.begin(b"one", files)
    before = world.journal.status().stamp
    block = BlockId(next(row.block for row in world.rows(Block)))
    volume = next(iter(world.volumes.values()))
    assert volume.delete(block, Stamp(9, 9))  # a difference that a report of a sealed block would mark

    assert files.upkeep.repair().marked == 0

    assert world.journal.status().stamp == before
    assert not [row for row in world.rows(Member) if row.fault]
    writer.write(b"two")
    writer.close()  # its writer drops the member
    assert world.read() == b"onetwo"


def test_bytes_and_checksums_are_read_together_while_a_block_is_written(tmp_path: Path) -> None:
    """HDFS: bytes and checksum change together, under the block's lock. Here a frame has both."""
    with DirectoryVolume(tmp_path) as volume:
        volume.create(B, S1)
        done = threading.Event()

        def write() -> None:
            for length in range(0, 300, 3):
                volume.append(B, S1, length, b"abc")
                volume.flush(B, S1)
            done.set()

        writer = threading.Thread(target=write)
        writer.start()
        lengths = [0]
        while not done.is_set():
            data = volume.read(B, S1, 0, 300)
            assert data == b"abc" * (len(data) // 3)
            lengths.append(len(data))
        writer.join(30)
        assert lengths == sorted(lengths)
        found = volume.finish(B, S1, 300, ReplicaState.SEALED)
        assert (found.length_bytes, volume.read(B, S1, 0, 999)) == (300, b"abc" * 100)
