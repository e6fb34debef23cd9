"""Nothing is deleted or copied until nearly all blocks have a replica that has reported."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lockgate.storage_core.errors import SafeModeError
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.namespace.rows import ReportedVolume
from tests.support.files.file_world import NAMES, TEXT, FileWorld

ACTIONS: dict[str, Callable[[Files], object]] = {
    "copies and deletions of replicas": lambda files: files.upkeep.repair(),
    "removal of deleted files": lambda files: files.remove_deleted(),
}


@pytest.fixture
def reported(world: FileWorld) -> FileWorld:
    """Return three registered volumes that have never reported; a file has one replica of each block."""
    world.fill().register()
    world.write(world.process(NAMES[0]), "/single.log")
    return world


@pytest.mark.parametrize("action", ACTIONS)
def test_it_waits_while_the_only_replicas_of_blocks_are_on_a_volume_that_has_not_reported(
    reported: FileWorld, action: str
) -> None:
    reported.opened[NAMES[0]].is_up = False
    reported.files.delete("/a.log")
    before = {name: volume.blocks() for name, volume in reported.opened.items()}
    with pytest.raises(SafeModeError, match=rf"{action}.*3 of 7 blocks.*99\.90%.*volume-0.*FILES_SAFE_SHARE"):
        ACTIONS[action](reported.files)
    assert {name: volume.blocks() for name, volume in reported.opened.items()} == before
    assert reported.process(NAMES[1]).open("/b.log").read() == b"abc"
    reported.opened[NAMES[0]].is_up = True
    ACTIONS[action](reported.files)
    assert {row.volume for row in reported.rows(ReportedVolume)} >= {NAMES[0], NAMES[2]}


def test_disks_that_are_gone_hold_copies_back_until_an_operator_accepts_it(
    reported: FileWorld, tmp_path: Path
) -> None:
    blocks = reported.opened[NAMES[0]].folder / "blocks"
    blocks.rename(kept := tmp_path / "kept")
    blocks.mkdir()
    with pytest.raises(SafeModeError, match=r"3 of 7 blocks.*--accept-loss"):
        reported.files.upkeep.repair()
    done = reported.files.upkeep.repair(accept_loss=True)
    assert (done.copied, len(done.problems)) == (4, 6)  # they are lost, and cannot be copied
    assert reported.files.upkeep.repair().copied == 0  # it stays accepted
    shutil.rmtree(blocks)
    kept.rename(blocks)
    reported.restart_volumes()
    assert reported.files.upkeep.repair().problems == []
    assert reported.files.open("/single.log").read() == TEXT


def test_a_report_frees_removals_that_lost_replicas_of_deleted_files_hold_back(reported: FileWorld) -> None:
    for volume in reported.opened.values():
        for block in volume.blocks():
            volume.lose(block)
    with pytest.raises(SafeModeError, match="7 of 7 blocks"):
        reported.files.upkeep.repair()
    for path in ("/a.log", "/b.log", "/single.log"):
        reported.files.delete(path)
    with pytest.raises(SafeModeError, match="7 of 7 blocks"):
        reported.files.remove_deleted()
    assert reported.problems() == set()
    assert reported.files.remove_deleted().blocks == 7
    assert reported.blocks() == []


def test_volumes_of_a_home_and_a_share_of_zero_are_not_waited_for(world: FileWorld) -> None:
    world.fill()
    for volume in world.opened.values():
        volume.is_up = False
    world.files.remove_deleted()
    world.register()
    with pytest.raises(SafeModeError):
        world.files.remove_deleted()
    world.process(files_safe_share=0).remove_deleted()
