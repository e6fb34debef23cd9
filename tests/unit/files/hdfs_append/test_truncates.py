"""HDFS Append and Truncates, section "Truncates": the steps of a reseal with a target."""

from __future__ import annotations

import itertools
from functools import partial

import pytest

from lockgate.storage_core.errors import FencedError, InvalidInputError, StoreUnavailableError
from lockgate.storage_core.stamp import Stamp
from tests.support.commit.destination import crash_at
from tests.support.files.file_world import TEXT, FileWorld, at
from tests.support.soak import soak_only


@pytest.mark.parametrize("length", range(21))
def test_a_truncate_at_every_byte_of_three_blocks(world: FileWorld, length: int) -> None:
    """HDFS: blocks beyond the new size are discarded, and one may be cut in the middle."""
    files = world.process()
    world.write(files, "/a.log")
    files.truncate("/a.log", length)
    files.truncate("/a.log", length)

    assert files.open("/a.log").read() == TEXT[:length]
    assert files.status("/a.log").length_bytes == length
    with files.append("/a.log") as writer:
        writer.write(b"-end")
    assert files.open("/a.log").read() == TEXT[:length] + b"-end"
    assert files.remove_deleted().blocks == len([start for start in (8, 16) if length <= start])


@pytest.mark.parametrize("length", [16, *map(soak_only, [0, 5, 8, 12, 19])])
def test_a_truncate_that_dies_at_any_step_leaves_the_old_length_or_the_new(
    world: FileWorld, length: int
) -> None:
    """HDFS: the client recovers from errors. Here also the next process, from a death of the client."""
    for die_at in itertools.count():
        path = f"/{die_at}.log"
        world.write(world.process(), path)
        dying = world.process()
        died = crash_at(die_at, partial(dying.truncate, path, length))
        dying.close()
        if died is None:
            assert die_at > 8
            return
        files = world.process()
        if files.status(path).is_open:
            world.lapse()
            assert [found.why_not for found in files.recovery.recover_lapsed()] == [""]
        assert files.open(path).read() in {TEXT, TEXT[:length]}
        files.truncate(path, length)
        assert files.open(path).read() == TEXT[:length]


@pytest.mark.parametrize("length", [-1, 21, 10**12])
def test_a_length_outside_the_file_is_refused_and_nothing_is_changed(world: FileWorld, length: int) -> None:
    """HDFS: a truncate to a greater size is not supported."""
    files = world.process()
    world.write(files, "/a.log")
    before = world.journal.status().stamp

    with pytest.raises(InvalidInputError, match="give a length from 0 to 20"):
        files.truncate("/a.log", length)
    assert world.journal.status().stamp == before


def test_blocks_beyond_the_new_size_are_discarded_at_once(world: FileWorld) -> None:
    """HDFS: complete blocks are eliminated first, and logged. Here by the entry that has the target."""
    files = world.process()
    world.write(files, "/a.log")
    before, seen = len(world.entries()), []
    with at("reseal.stamp.after", lambda: seen.extend(world.records("/a.log"))):
        files.truncate("/a.log", 5)
    assert [(record.length_bytes, record.target_bytes) for record in seen] == [(8, 5)]
    assert world.entries()[before:] == ["open-file", "stamp-block", "commit-block", "close-file"]
    assert world.leases() == []
    assert files.remove_deleted().blocks == 2


def test_all_replicas_have_the_new_stamp_before_one_is_cut(world: FileWorld) -> None:
    """HDFS: stamp, log, then truncate, which names the new stamp."""
    files = world.process(block_bytes=100)
    world.write(files, "/a.log")
    (before,) = world.records("/a.log")

    def look() -> None:
        (record,) = world.records("/a.log")
        found = [volume.stat(record.block) for volume in world.volumes.values()]
        assert [one.length_bytes for one in found] == [20, 20, 20]
        stamps.extend((record.pending, *(one.stamp for one in found)))

    stamps: list[Stamp | None] = []
    with at("reseal.trim.before", look):
        files.truncate("/a.log", 5)
    (after,) = world.records("/a.log")
    assert stamps == [after.stamp] * 4
    assert after.stamp > before.stamp
    for volume in world.volumes.values():
        with pytest.raises(FencedError):
            volume.trim(before.block, before.stamp, 1)
    assert files.open("/a.log").read() == TEXT[:5]


@pytest.mark.parametrize("step", ["fence", "trim", "finish"])
def test_an_error_of_a_member_is_handled_as_that_of_a_writer(world: FileWorld, step: str) -> None:
    """HDFS: as item 3 of the writer: the bad datanode is removed, and the others get a newer stamp."""
    files = world.process(block_bytes=100)
    world.write(files, "/a.log")
    bad = max(world.names)  # the last one that is called
    with at(f"reseal.{step}.before", lambda: world.volumes.pop(bad)):
        files.truncate("/a.log", 5)
    world.volumes[bad] = world.opened[bad]
    (record,) = world.records("/a.log")
    assert set(record.members) == {*world.names} - {bad}
    assert files.open("/a.log").read() == TEXT[:5]
    with world.without(*record.members), pytest.raises(StoreUnavailableError):
        files.open("/a.log").read()
    assert files.upkeep.repair().deleted == 1


def test_a_cut_without_a_member_is_done_later(world: FileWorld) -> None:
    """HDFS: the client recovers from errors. Here without any member the target waits in the journal."""
    files = world.process(block_bytes=100)
    world.write(files, "/a.log")
    with world.without(*world.names), pytest.raises(StoreUnavailableError):
        files.truncate("/a.log", 5)
    assert world.read() == TEXT[:5]
    assert world.recover() == []
    (record,) = world.records("/a.log")
    assert (record.length_bytes, record.target_bytes, len(record.members)) == (5, None, 3)
