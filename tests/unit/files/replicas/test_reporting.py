"""Nothing is deleted or copied until nearly all blocks have a replica that has reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from lockgate.storage_core.errors import SafeModeError
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.namespace.rows import ReportedVolume
from lockgate.storage_core.settings import load_settings
from tests.support.files.file_world import TEXT
from tests.support.files.memory_world import NAMES, MemoryWorld
from tests.support.journal.checkpoints import JournalWorld

ACTIONS: dict[str, Callable[[Files], object]] = {
    "copies and deletions of replicas": lambda files: files.upkeep.repair(),
    "removal of deleted files": lambda files: files.remove_deleted(),
}


@pytest.fixture
def world(journals: JournalWorld) -> Iterator[MemoryWorld]:
    """Three registered volumes that have never reported; a file has one replica of each block."""
    with MemoryWorld(journals) as world:
        world.register()
        with world.process(NAMES[0]).create("/single.log") as writer:
            writer.write(TEXT)
        yield world


@pytest.mark.parametrize("action", ACTIONS)
def test_it_waits_while_the_only_replicas_of_blocks_are_on_a_volume_that_has_not_reported(
    world: MemoryWorld, action: str
) -> None:
    world.volumes[NAMES[0]].is_up = False
    world.files.delete("/a.log")
    before = {name: set(volume.stored) for name, volume in world.volumes.items()}
    with pytest.raises(SafeModeError, match=rf"{action}.*3 of 7 blocks.*99\.90%.*volume-0.*FILES_SAFE_SHARE"):
        ACTIONS[action](world.files)
    assert {name: set(volume.stored) for name, volume in world.volumes.items()} == before
    assert world.process(NAMES[1]).open("/b.log").read() == b"abc"
    world.volumes[NAMES[0]].is_up = True
    ACTIONS[action](world.files)
    with world.journal.reading() as reading:
        assert {row.volume for row in reading.where(ReportedVolume, {})} >= {NAMES[0], NAMES[2]}


def test_disks_that_are_gone_hold_copies_back_until_an_operator_accepts_it(world: MemoryWorld) -> None:
    kept = dict(world.volumes[NAMES[0]].stored)
    world.volumes[NAMES[0]].stored.clear()
    with pytest.raises(SafeModeError, match=r"3 of 7 blocks.*--accept-loss"):
        world.files.upkeep.repair()
    done = world.files.upkeep.repair(accept_loss=True)
    assert (done.copied, len(done.problems)) == (4, 6)  # they are lost, and cannot be copied
    assert world.files.upkeep.repair().copied == 0  # it stays accepted
    world.volumes[NAMES[0]].stored.update(kept)
    assert world.files.upkeep.repair().problems == []
    assert world.files.open("/single.log").read() == TEXT


def test_a_report_frees_removals_that_lost_replicas_of_deleted_files_hold_back(world: MemoryWorld) -> None:
    for volume in world.volumes.values():
        volume.stored.clear()
    with pytest.raises(SafeModeError, match="7 of 7 blocks"):
        world.files.upkeep.repair()
    for path in ("/a.log", "/b.log", "/single.log"):
        world.files.delete(path)
    with pytest.raises(SafeModeError, match="7 of 7 blocks"):
        world.files.remove_deleted()
    assert world.problems() == set()
    assert world.files.remove_deleted().blocks == 7
    assert world.blocks() == []


def test_volumes_of_a_home_and_a_share_of_zero_are_not_waited_for(journals: JournalWorld) -> None:
    with MemoryWorld(journals) as world:
        for volume in world.volumes.values():
            volume.is_up = False
        world.files.remove_deleted()
        world.register()
        with pytest.raises(SafeModeError):
            world.files.remove_deleted()
        Files(world.journal, world.volumes, load_settings(files_safe_share=0)).remove_deleted()
