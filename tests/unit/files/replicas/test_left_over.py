"""Replicas that no block names are deleted in two passes, and none that a block may need."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lockgate.storage_core.errors import SafeModeError
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.namespace.rows import Block
from lockgate.storage_core.files.replicas.left_over import LeftOver
from lockgate.storage_core.files.volumes.replica import BlockId, Replica
from lockgate.storage_core.journal.safe_mode import add_operators_reason
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.stamp import Stamp
from tests.support.files.file_world import FileWorld


@pytest.fixture
def world(world: FileWorld, tmp_path: Path) -> FileWorld:
    """Two files; one volume missed an append to the first and the removal of the second."""
    files = world.process()
    for path in ("/a.log", "/b.log"):
        world.write(files, path, b"abc")
    away = world.names[0]
    others = {volume: world.volumes[volume] for volume in world.volumes if volume != away}
    with Files(world.journal, others, load_settings(), block_bytes=8).append("/a.log") as writer:
        writer.write(b"def")
    world.stop_volumes()
    shutil.copytree(world.folders[0], tmp_path / "old")
    world.start_volumes()
    files.delete("/b.log")
    files.remove_deleted()
    world.stop_volumes()
    shutil.rmtree(world.folders[0])
    shutil.copytree(tmp_path / "old", world.folders[0])
    world.start_volumes()
    return world


def replicas(world: FileWorld) -> tuple[Replica, ...]:
    return world.volumes[world.names[0]].replicas(None, 10)


def test_old_replicas_of_a_volume_that_was_away_are_deleted_in_two_passes(world: FileWorld) -> None:
    files = world.process()
    assert len(replicas(world)) == 2
    assert files.upkeep.delete_left_over(dry_run=True) == LeftOver(found=2)
    assert len(replicas(world)) == 2
    began_s = world.clock.monotonic_s()
    assert files.upkeep.delete_left_over() == LeftOver(found=2, deleted=2)
    assert world.clock.monotonic_s() - began_s == load_settings().lease_hard_s
    assert replicas(world) == ()
    assert files.upkeep.delete_left_over() == LeftOver()
    assert files.open("/a.log").read() == b"abcdef"


def test_a_replica_is_kept_while_a_member_of_its_block_has_no_good_one(world: FileWorld) -> None:
    (row,) = world.rows(Block)
    for folder in world.folders[1:]:
        (folder / f"{row.block:020d}.log").unlink()
    world.restart_volumes()

    assert world.process().upkeep.delete_left_over() == LeftOver(found=2, deleted=1, kept=1)
    assert [one.block for one in replicas(world)] == [row.block]


def test_a_replica_without_a_stamp_or_of_another_history_is_left_to_the_operator(world: FileWorld) -> None:
    volume = world.volumes[world.names[0]]
    volume.create(BlockId(2), Stamp())
    volume.create(BlockId(3), Stamp(9, 9))

    assert world.process().upkeep.delete_left_over() == LeftOver(found=3, deleted=2, kept=1)
    assert [one.block for one in replicas(world)] == [2, 3]


def test_a_replica_that_changes_between_the_passes_is_kept(
    world: FileWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume, (first, _) = world.volumes[world.names[0]], replicas(world)
    sleep = world.clock.sleep

    def change(seconds: float) -> None:
        with world.journal.reading() as reading:
            volume.fence(first.block, reading.status().stamp)
        sleep(seconds)

    monkeypatch.setattr(world.clock, "sleep", change)
    assert world.process().upkeep.delete_left_over() == LeftOver(found=2, deleted=1, kept=1)
    assert [one.block for one in replicas(world)] == [first.block]


def test_nothing_is_deleted_in_safe_mode(world: FileWorld) -> None:
    add_operators_reason(world.journal, "a test")
    with pytest.raises(SafeModeError):
        world.process().upkeep.delete_left_over()
    assert len(replicas(world)) == 2
