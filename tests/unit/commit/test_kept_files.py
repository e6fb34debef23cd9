"""Tests of the history rule: which replaced files are kept for readers of earlier turns, and until when."""

from __future__ import annotations

from lockgate.storage_core.commit.destination.as_of import manifest_as_of
from lockgate.storage_core.commit.destination.kept_files import set_history_rule
from lockgate.storage_core.commit.destination.log import DestinationLog
from lockgate.storage_core.commit.destination.tags import create_tag, delete_tag
from lockgate.storage_core.commit.records.log_records import HistoryRule
from lockgate.storage_core.commit.recovery.upload_sweep import SweepReport, sweep_uploads
from lockgate.storage_core.errors import InvalidInputError
from tests.support.commit.destination import World

DAY_S = 24 * 3600.0


def readable(world: World) -> list[int]:
    """Return the turns whose files are all there."""
    log, turns = DestinationLog(world.store), []
    for turn in range(1, log.manifest().turn + 1):
        try:
            manifest_as_of(log, turn)
        except InvalidInputError:
            continue
        turns.append(turn)
    return turns


def sweep(world: World, *, dry_run: bool = False) -> SweepReport:
    return sweep_uploads(world.url, dry_run=dry_run, settings=world.settings, clock=world.clock)


def replace_daily(world: World, days: int) -> None:
    for day in range(1, days + 1):
        world.run(f"day-{day}", {"a.csv": b"x" * day}, mode="replace")
        world.clock.sleep(DAY_S)


def test_turns_of_so_many_days_and_so_many_turns_and_tagged_ones_keep_their_files(world: World) -> None:
    log = DestinationLog(world.store)
    set_history_rule(world.store, HistoryRule(keep_s=0, keep_turns=2))
    replace_daily(world, 6)
    create_tag(log, "v1", 1, world.clock)

    assert readable(world) == [1, 2, 3, 4, 5, 6]
    assert sweep(world).jobs == ()  # it has only found what may go
    assert sweep(world).jobs == ()
    world.clock.sleep(world.settings.orphan_age_s)
    planned = sweep(world, dry_run=True).jobs
    assert [job.job_id for job in planned] == ["day-3-g1", "day-4-g1"]
    assert "turns before 3 that have them" in planned[0].action
    assert readable(world) == [1, 2, 3, 4, 5, 6]
    sweep(world)
    assert readable(world) == [1, 4, 5, 6]

    set_history_rule(world.store, HistoryRule(keep_s=2.5 * DAY_S, keep_turns=0))
    delete_tag(world.store, "v1")
    sweep(world)  # day 7: turn 5 was the last one until day 5
    world.clock.sleep(world.settings.orphan_age_s)
    sweep(world)
    assert readable(world) == [5, 6]


def test_a_file_that_is_needed_again_before_the_second_sweep_is_kept(world: World) -> None:
    set_history_rule(world.store, HistoryRule(keep_s=0, keep_turns=0))
    replace_daily(world, 3)
    sweep(world)
    create_tag(DestinationLog(world.store), "v2", 2, world.clock)
    world.clock.sleep(world.settings.orphan_age_s)
    sweep(world)
    assert readable(world) == [2, 3]
