"""HDFS Append and Truncates, section "Periodic Verification of Datanodes": it reads as a reader does."""

from __future__ import annotations

import threading

import pytest

from lockgate.storage_core.files.replicas.comparison import Finding
from tests.support.files.file_world import TEXT, FileWorld


@pytest.fixture
def world(world: FileWorld) -> FileWorld:
    world.write(world.process(), "/a.log")
    return world


def check(world: FileWorld) -> list[Finding]:
    return list(world.process().upkeep.check().findings())


def test_it_uses_the_calls_of_a_reader_only(world: FileWorld) -> None:
    """HDFS: the verifier uses the code of a reader."""
    first, *_ = world.records("/a.log")
    world.opened[world.names[0]].flip(first.block, TEXT[:8])
    for volume in world.opened.values():
        volume.calls.clear()
    assert [(one.volume, one.block) for one in check(world)] == [(world.names[0], first.block)]
    used = {name for volume in world.opened.values() for name, *_ in volume.calls}
    assert used == {"read", "stat", "replicas"}


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
        assert check(world) == []
        repaired = world.process().upkeep.repair()
        assert (repaired.marked, repaired.problems) == (0, [])
        rounds += 1
    writer.join(60)
    assert world.read() == TEXT + b"more!" * 10


def test_damage_on_the_disk_of_one_volume_is_found_whatever_reader_has_it_open(world: FileWorld) -> None:
    """HDFS: as above. Here a repair takes the damaged replica out of use."""
    _, second, _ = world.records("/a.log")
    reader = world.process().open("/a.log")
    assert reader.read(4) == TEXT[:4]
    world.opened[world.names[2]].flip(second.block, TEXT[8:16])
    assert [one.volume for one in check(world)] == [world.names[2]]
    assert world.process().upkeep.repair().marked == 1
    assert reader.read() == TEXT[4:]
    assert [*world.records("/a.log")[1].faults] == [world.names[2]]
