"""The history rule: which replaced files are kept for readers of earlier turns, where, and until when."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from lockgate.storage_core.commit.destination.as_of import manifest_as_of
from lockgate.storage_core.commit.destination.kept_files import get_published, set_history_rule
from lockgate.storage_core.commit.destination.log import DestinationLog
from lockgate.storage_core.commit.destination.tags import create_tag, delete_tag
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.log_records import HistoryRule
from lockgate.storage_core.commit.recovery.upload_sweep import SweepReport, sweep_uploads
from lockgate.storage_core.commit.revert_to_turn import revert_to_turn
from lockgate.storage_core.errors import InvalidInputError, OutcomeUnknownError
from lockgate.storage_core.failpoints import FAILPOINTS
from tests.support.commit.destination import World, crash_at, dying, plain
from tests.support.s3.destination import s3_world
from tests.support.soak import sample

DAY_S = 24 * 3600.0


def read(world: World, turn: int) -> dict[str, bytes]:
    found = manifest_as_of(DestinationLog(world.store), turn)
    return {plain(key): world.store.get(found.path(key)) for key in found.files}


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


def kept(world: World) -> list[str]:
    return [info.key for page in world.store.pages(layout.KEPT) for info in page]


def sweep(world: World, *, dry_run: bool = False) -> SweepReport:
    return sweep_uploads(world.url, dry_run=dry_run, settings=world.settings, clock=world.clock)


def replace_daily(world: World, days: int) -> None:
    for day in range(1, days + 1):
        world.run(f"day-{day}", {"a.csv": b"x" * day}, mode="replace")
        world.clock.sleep(DAY_S)


@pytest.mark.parametrize("in_place", [False, True])
def test_turns_of_so_many_days_and_so_many_turns_and_tagged_ones_keep_their_files(
    world: World, in_place: bool
) -> None:
    log = DestinationLog(world.store)
    world.keep(turns=2, in_place=in_place)
    replace_daily(world, 6)
    create_tag(log, "v1", 1, world.clock)

    assert readable(world) == [1, 2, 3, 4, 5, 6]
    assert len(world.keys()) == (6 if in_place else 1), "what a program that lists sees"
    assert list(sweep(world).lines()) == ["replaced files that no kept turn has: a later sweep deletes 2"]
    assert list(sweep(world, dry_run=True).lines()) == list(sweep(world).lines())
    world.clock.sleep(world.settings.orphan_age_s)
    (planned,) = sweep(world, dry_run=True).lines()
    assert planned.startswith("replaced files that no kept turn has: delete 2, such as a-")
    assert planned.endswith("turns before 4 that have them cannot be read from then on")
    assert readable(world) == [1, 2, 3, 4, 5, 6]
    sweep(world)
    assert readable(world) == [1, 4, 5, 6]
    assert (len(world.keys()), len(kept(world))) == (4 if in_place else 1, 3)

    set_history_rule(world.store, HistoryRule(keep_s=2.5 * DAY_S, keep_turns=0, in_place=in_place))
    delete_tag(world.store, "v1")
    sweep(world)  # day 7: turn 5 was the last one until day 5
    world.clock.sleep(world.settings.orphan_age_s)
    sweep(world)
    assert readable(world) == [5, 6]
    assert world.store.get(layout.EXPIRED)


def test_a_file_that_is_needed_again_before_the_second_sweep_is_kept(world: World) -> None:
    world.keep()
    replace_daily(world, 3)
    sweep(world)
    create_tag(DestinationLog(world.store), "v2", 2, world.clock)
    world.clock.sleep(world.settings.orphan_age_s)
    sweep(world)
    assert readable(world) == [2, 3]


def test_the_jobs_of_a_destination_with_history_are_done_at_their_end(world: World) -> None:
    world.keep(turns=1)
    world.run("one", {"day=1/a.csv": b"1"})
    job = world.run("two", {"day=2/b.csv": b"2"}, mode="replace")

    assert not any(world.store.pages(f"{layout.job_folder(job.job_id)}plan/"))
    assert world.visible() == {"day=2/b.csv": b"2"}
    assert [key.removeprefix(layout.KEPT).rpartition("/")[0] for key in kept(world)] == ["day=1"]
    assert read(world, 1) == {"day=1/a.csv": b"1"}
    assert sweep(world).jobs == ()


def test_a_reader_that_began_before_a_replace_reads_on(world: World) -> None:
    world.keep(turns=1)
    world.run("one", {"a.csv": b"one"})
    began = DestinationLog(world.store).manifest()
    world.run("two", {"b.csv": b"two"}, mode="replace")
    assert [get_published(world.store, key, start=1, length=1) for key in began.files] == [b"n"]


def test_only_files_that_a_turn_has_and_whose_names_are_unique_are_kept(world: World) -> None:
    world.store.put("theirs.csv", b"0")
    world.keep(turns=5)
    world.run("one", {"mine.csv": b"1"}, unique_filenames=False)
    world.run("two", {"b.csv": b"2"}, mode="replace")
    assert world.visible() == {"b.csv": b"2"}
    assert kept(world) == []
    assert readable(world) == [2]


@pytest.mark.parametrize("in_place", [False, True])
def test_a_file_whose_name_is_too_long_to_be_kept_is_deleted(world: World, in_place: bool) -> None:
    world.keep(turns=5, in_place=in_place)
    world.run("one", {f"{'/'.join(['d' * 250] * 4)}/a.csv": b"1"})
    world.run("two", {"b.csv": b"2"}, mode="replace")
    assert world.visible() == {"b.csv": b"2"}
    assert (kept(world), readable(world)) == ([], [2])


OLD, NEW = {"day=1/a.csv": b"1", "day=1/z.csv": b"9"}, {"day=2/b.csv": b"2", "day=2/c.csv": b"3"}


def prepared(world: World) -> World:
    world.keep(turns=3)
    world.run("old", OLD)
    return world


def fresh(root: Path, number: int) -> World:
    return prepared(World(root / f"{number}", str(root / f"{number}" / "dest")))


def replace(world: World) -> None:
    world.run("new", NEW, mode="replace")


def check_replaced(world: World, at: object) -> None:
    """Check that the replacement is whole or has not happened, to programs that list and to all others."""
    assert world.visible() in (OLD, NEW), at
    assert world.live() == world.keys(), at
    assert read(world, 1) == OLD, at
    assert world.open_uploads() == [], at


def points_of_the_move(world: World) -> list[tuple[int, str]]:
    """Return the points of a replacement at which files are moved, and their numbers in it."""
    names: list[str] = []
    FAILPOINTS.observer = dying(names.append)
    try:
        replace(world)
    finally:
        FAILPOINTS.observer = None
    return [(number, name) for number, name in enumerate(names) if name.startswith("remove.")]


def test_a_replacement_that_dies_at_any_call_of_the_move_is_whole_after_recovery(tmp_path: Path) -> None:
    points = points_of_the_move(fresh(tmp_path, 10_000))
    assert {name for _, name in points} >= {
        "remove.adopt.after",
        "remove.complete.after",
        "remove.delete.after",
    }
    for number, name in points:
        world = fresh(tmp_path, number)
        crash_at(number, partial(replace, world))
        assert read(world, 1) == OLD, name
        world.recover()
        sweep(world)
        check_replaced(world, name)
        assert read(world, 2) == NEW, name


def test_a_lost_answer_to_any_call_of_the_move_is_asked_for_again(tmp_path: Path) -> None:
    points = [
        (number, name) for number, name in points_of_the_move(fresh(tmp_path, 10_000)) if "after" in name
    ]
    for number, name in points:
        world, passed = fresh(tmp_path, number), count()

        def lose(at: str, number: int = number, passed: Iterator[int] = passed) -> None:
            if next(passed) == number:
                raise OutcomeUnknownError(at)

        FAILPOINTS.observer = dying(lose)
        try:
            replace(world)
        except OutcomeUnknownError:
            pass  # the job is published, and recovery ends it
        finally:
            FAILPOINTS.observer = None
        world.recover()
        sweep(world)
        check_replaced(world, name)


def test_a_replacement_in_s3_that_dies_at_any_request_is_whole_after_recovery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_world(tmp_path, monkeypatch) as s3:
        prepared(s3.driver)
        moments = s3.moments_of(partial(replace, s3.driver))
        for number, moment in sample(list(enumerate(moments)), 8):
            s3.go_back_to(moment)
            assert read(s3.other, 1) == OLD, number
            s3.other.recover()
            sweep(s3.other)
            check_replaced(s3.other, number)
        assert read(s3.other, 2) == NEW


def test_a_sweep_in_s3_that_dies_at_any_request_leaves_what_a_kept_turn_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_world(tmp_path, monkeypatch) as s3:
        s3.driver.keep(turns=1)
        replace_daily(s3.driver, 4)
        sweep(s3.driver)
        s3.driver.clock.sleep(s3.driver.settings.orphan_age_s)
        assert len(kept(s3.driver)) == 3
        moments = s3.moments_of(partial(sweep, s3.driver))
        for number, moment in sample(list(enumerate(moments)), 8):
            s3.go_back_to(moment)
            assert {3, 4} <= set(readable(s3.other)), number
            for _ in range(2):
                sweep(s3.other)
                s3.other.clock.sleep(s3.other.settings.orphan_age_s)
            assert (readable(s3.other), len(kept(s3.other))) == ([3, 4], 1), number


def test_a_process_that_wakes_up_late_takes_no_file_away_that_a_revert_has_made_live(world: World) -> None:
    prepared(world)
    asleep = [True]

    def wake_up_late(name: str) -> None:
        if name == "remove.delete.before" and asleep:
            asleep.clear()
            revert_to_turn(world.url, 1, settings=world.settings, clock=world.clock)

    FAILPOINTS.observer = wake_up_late
    try:
        replace(world)
    finally:
        FAILPOINTS.observer = None
    assert not asleep
    assert {plain(key): world.store.get(key) for key in world.live()} == OLD
    assert world.live() == world.keys()
