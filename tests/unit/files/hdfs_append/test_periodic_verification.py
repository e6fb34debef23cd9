"""HDFS Append and Truncates, section "Periodic Verification of Datanodes": it reads as a reader does."""

from __future__ import annotations

import threading

import pytest

from lockgate.storage_core.files.namespace.rows import Member
from lockgate.storage_core.files.volumes.local import LocalVolume
from lockgate.storage_core.files.volumes.protocol import Volume
from tests.support.files.file_world import TEXT, FileWorld
from tests.unit.files.replicas.test_verification import blocks, faults, flip, verify


@pytest.fixture
def world(world: FileWorld) -> FileWorld:
    world.write(world.process(), "/a.log")
    return world


class ReadOnly:
    """A volume of which a verification may use the calls of a reader only."""

    def __init__(self, volume: Volume) -> None:
        self.read, self.stat, self.replicas = volume.read, volume.stat, volume.replicas


def test_it_uses_the_calls_of_a_reader_only(world: FileWorld) -> None:
    """HDFS: the verifier uses the code of a reader."""
    first, *_ = blocks(world)
    flip(world, 0, first)
    world.volumes.update({name: ReadOnly(one) for name, one in world.volumes.items()})  # type: ignore[misc]
    assert verify(world)[world.names[0]].quarantined == 1


def test_blocks_that_are_written_meanwhile_are_not_taken_for_damaged(world: FileWorld) -> None:
    """HDFS: the block's lock makes it work beside writers."""
    done = threading.Event()
    files = world.process(block_bytes=32)

    def write() -> None:
        for _ in range(10):
            with files.append("/a.log") as writer:
                writer.write(b"more")
                writer.flush()
                writer.write(b"!")
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    rounds = 0
    while not done.is_set() or not rounds:
        for one in verify(world).values():
            assert (one.quarantined, one.only_ones, one.findings, one.why_not) == (0, 0, [], "")
        rounds += 1
    writer.join(60)
    assert faults(world) == {}
    assert world.process().open("/a.log").read() == TEXT + b"more!" * 10


def test_damage_on_the_disk_of_one_volume_is_found_whatever_reader_has_it_open(world: FileWorld) -> None:
    """HDFS: as above. Here the damaged replica is set aside."""
    _, second, _ = blocks(world)
    reader = world.process().open("/a.log")
    assert reader.read(4) == TEXT[:4]
    flip(world, 2, second)
    assert isinstance(world.opened[world.names[2]], LocalVolume)
    assert verify(world)[world.names[2]].quarantined == 1
    assert reader.read() == TEXT[4:]
    assert len([row for row in world.rows(Member) if row.fault]) == 1
