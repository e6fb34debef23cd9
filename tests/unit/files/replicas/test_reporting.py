"""Nothing is deleted or copied until nearly all blocks have a replica that has reported."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from lockgate.storage_core.errors import SafeModeError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.namespace.registered_volumes import RegisterVolume
from lockgate.storage_core.files.namespace.rows import ReportedVolume
from lockgate.storage_core.journal.database.row_access import SqlRows
from lockgate.storage_core.journal.journal import maintenance
from lockgate.storage_core.settings import load_settings
from tests.support.commit.destination import Crash
from tests.support.files.file_world import TEXT
from tests.support.files.memory_world import NAMES, MemoryWorld
from tests.support.journal.checkpoints import JournalWorld

ACTIONS: dict[str, Callable[[Files], object]] = {
    "copies of blocks": lambda files: list(files.upkeep.re_replicate()),
    "deletion of replicas": lambda files: files.upkeep.delete_left_over(),
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


def reports(world: MemoryWorld) -> set[str]:
    with world.journal.reading() as reading:
        return {row.volume for row in reading.where(ReportedVolume, {})}


@pytest.mark.parametrize("action", ACTIONS)
def test_volumes_that_have_not_reported_are_asked_first(world: MemoryWorld, action: str) -> None:
    began_s = world.clock.monotonic_s()
    ACTIONS[action](world.files)
    assert reports(world) == set(NAMES)
    assert world.clock.monotonic_s() == began_s


@pytest.mark.parametrize("action", ACTIONS)
def test_it_waits_while_the_only_replicas_of_blocks_are_on_a_volume_that_is_away(
    world: MemoryWorld, action: str
) -> None:
    world.volumes[NAMES[0]].is_up = False
    world.files.delete("/a.log")
    before = {name: set(volume.stored) for name, volume in world.volumes.items()}
    with pytest.raises(SafeModeError, match=rf"{action}.*3 of 7 blocks.*99\.90%.*volume-0") as refused:
        ACTIONS[action](world.files)
    assert re.search("LOCKGATE_FILES_SAFE_SHARE", str(refused.value))
    assert {name: set(volume.stored) for name, volume in world.volumes.items()} == before
    assert world.process(NAMES[1]).open("/b.log").read() == b"abc"
    world.volumes[NAMES[0]].is_up = True
    ACTIONS[action](world.files)


def test_with_enough_reports_it_waits_a_while_for_the_others(world: MemoryWorld) -> None:
    world.files.delete("/single.log")
    world.files.remove_deleted()
    with maintenance(world.journal, "test") as (connection, _):
        SqlRows(connection, world.journal.name).write({(ReportedVolume, (name,)): None for name in NAMES})
    world.volumes[NAMES[0]].is_up = False
    began_s = world.clock.monotonic_s()
    world.files.remove_deleted()
    assert world.clock.monotonic_s() - began_s == pytest.approx(load_settings().files_safe_wait_s, abs=1)
    assert reports(world) == {*NAMES[1:]}
    world.files.remove_deleted()  # the others have had that time
    assert world.clock.monotonic_s() - began_s == pytest.approx(load_settings().files_safe_wait_s, abs=1)


def test_disks_that_are_gone_hold_copies_back_until_an_operator_accepts_it(world: MemoryWorld) -> None:
    world.files.upkeep.report()
    single = world.process(NAMES[0]).status("/single.log")
    assert single.blocks == 3
    kept = dict(world.volumes[NAMES[0]].stored)
    world.volumes[NAMES[0]].stored.clear()
    world.files.upkeep.report()
    with pytest.raises(SafeModeError, match=r"3 of 7 blocks.*leave-safe-mode"):
        list(world.files.upkeep.re_replicate())
    assert world.files.upkeep.reporting().only_ones == 3
    assert world.files.upkeep.accept_missing() == 3
    assert {one.why_not for one in world.files.upkeep.re_replicate() if one.volume} == {""}
    world.files.upkeep.report()
    assert world.files.upkeep.reporting().share == 1.0
    world.volumes[NAMES[0]].stored.update(kept)
    world.files.upkeep.report()
    assert world.files.open("/single.log").read() == TEXT


def test_replicas_that_a_removal_has_deleted_are_no_loss_while_it_runs_and_after_it_died(
    world: MemoryWorld,
) -> None:
    world.files.make_directory("/logs")
    world.files.rename("/b.log", "/logs/b.log")
    world.files.truncate("/a.log", 3)
    for path in ("/logs", "/single.log"):
        world.files.delete(path, recursive=True)
    seen: list[object] = []

    def look(point: str, *, dies: bool) -> None:
        if point == "removal.replicas.after":
            FAILPOINTS.observer = None
            seen.extend(
                (report.differences, report.only_ones, verified.findings, verified.only_ones)
                for report, verified in zip(
                    world.files.upkeep.report(), world.files.upkeep.verify(), strict=True
                )
            )
            seen.extend(world.files.check().findings())
            FAILPOINTS.observer = partial(look, dies=True)
            if dies:
                raise Crash(point)

    FAILPOINTS.observer = partial(look, dies=False)
    with pytest.raises(Crash):
        world.files.remove_deleted()
    FAILPOINTS.observer = None

    assert seen == [(0, 0, [], 0)] * 6
    assert world.faults() == {}
    assert world.files.remove_deleted().kept_blocks == 0
    assert len(world.blocks()) == 1
    assert world.problems() == set()


def test_a_report_frees_removals_that_lost_replicas_of_deleted_files_hold_back(world: MemoryWorld) -> None:
    for volume in world.volumes.values():
        volume.stored.clear()
    world.files.upkeep.report()
    for path in ("/a.log", "/b.log", "/single.log"):
        world.files.delete(path)
    with pytest.raises(SafeModeError, match="7 of 7 blocks"):
        world.files.remove_deleted()

    assert {one.only_ones for one in world.files.upkeep.report()} == {0}
    assert world.problems() == set()
    assert list(world.files.upkeep.re_replicate()) == []
    assert world.files.remove_deleted().blocks == 7
    assert world.blocks() == []


def test_volumes_of_a_home_and_a_share_of_zero_are_not_waited_for(journals: JournalWorld) -> None:
    world = MemoryWorld(journals)
    for volume in world.volumes.values():
        volume.is_up = False
    world.files.remove_deleted()
    world.journal.apply(RegisterVolume(volume=NAMES[0], url="https://volume-0.example"))
    world.files.remove_deleted()  # the blocks have members on the others
    for name in NAMES[1:]:
        world.journal.apply(RegisterVolume(volume=name, url=f"https://{name}.example"))
    with pytest.raises(SafeModeError):
        world.files.remove_deleted()
    Files(world.journal, world.volumes, load_settings(files_safe_share=0)).remove_deleted()
    world.files.close()
    world.journal.close()
