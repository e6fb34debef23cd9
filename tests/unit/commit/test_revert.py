"""Tests of reverts, and of random histories against a model: each kept turn reads as it was."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest

from lockgate.storage_core.commit.destination.as_of import manifest_as_of
from lockgate.storage_core.commit.destination.kept_files import set_history_rule
from lockgate.storage_core.commit.destination.log import DestinationLog
from lockgate.storage_core.commit.destination.tags import create_tag
from lockgate.storage_core.commit.destination.turn_history import difference
from lockgate.storage_core.commit.records.log_records import HistoryRule
from lockgate.storage_core.commit.recovery.upload_sweep import sweep_uploads
from lockgate.storage_core.commit.revert_to_turn import revert_to_turn
from lockgate.storage_core.errors import ConflictError, InvalidInputError
from lockgate.storage_core.failpoints import FAILPOINTS
from tests.support.commit.destination import Crash, World, dying, plain
from tests.support.s3.destination import s3_world
from tests.support.soak import rounds, sample

State = dict[str, bytes]


def read(world: World, turn: int | None = None) -> State:
    found = manifest_as_of(DestinationLog(world.store), turn)
    return {plain(key): world.store.get(found.path(key)) for key in found.files}


def revert(world: World, turn: int, *, dry_run: bool = False) -> None:
    revert_to_turn(world.url, turn, dry_run=dry_run, settings=world.settings, clock=world.clock)


def history_of_three(world: World) -> list[State]:
    set_history_rule(world.store, HistoryRule(keep_s=0, keep_turns=1_000))
    world.run("one", {"a.csv": b"1"})
    world.run("two", {"b.csv": b"2"}, mode="replace")
    world.run("three", {"c.csv": b"3"})
    return [{}, {"a.csv": b"1"}, {"b.csv": b"2"}, {"b.csv": b"2", "c.csv": b"3"}]


def inodes(world: World) -> set[int]:
    return {path.stat().st_ino for path in Path(world.url).rglob("*.csv")}


def test_a_revert_is_a_turn_that_has_the_old_files_and_can_be_reverted(world: World) -> None:
    states = history_of_three(world)
    files = inodes(world)

    revert(world, 1, dry_run=True)
    assert read(world) == states[3]
    revert(world, 1)
    assert read(world) == world.visible() == states[1]
    revert(world, 3)
    assert read(world) == world.visible() == states[3]
    assert [read(world, turn) for turn in range(6)] == [*states, states[1], states[3]]
    assert inodes(world) == files, "no byte is copied"
    assert difference(DestinationLog(world.store), 3, 5).added == ()


def test_a_revert_to_files_that_nothing_keeps_is_refused(world: World) -> None:
    world.keep(turns=0)
    world.run("one", {"a.csv": b"1"})
    world.run("two", {"b.csv": b"2"}, mode="replace")
    world.run("three", {"c.csv": b"3"})

    with pytest.raises(ConflictError, match="neither the history rule nor a tag keeps 1 files of turn 1"):
        revert(world, 1)
    revert(world, 2)
    assert read(world) == {"b.csv": b"2"}


def test_files_of_the_same_name_by_several_jobs_are_live_again_side_by_side(world: World) -> None:
    world.keep(turns=9)
    for number in range(3):
        world.run(f"job-{number}", {"part-0.csv": b"%d" % number})
    world.run("all", {"part-0.csv": b"all"}, mode="replace")
    revert(world, 3)
    revert(world, 4)
    revert(world, 3)
    assert sorted(world.store.get(key) for key in world.live()) == [b"0", b"1", b"2"]
    assert {len(key) for key in world.live()} == {len("part-0.csv") + 2 * 11}


def test_a_recomputation_replaces_the_files_that_a_revert_has_made_live_again(world: World) -> None:
    world.keep(turns=9)
    world.run("sales", {"a.csv": b"1"})
    world.run("all", {"b.csv": b"2"}, mode="replace")
    revert(world, 1)
    world.run("sales", {"a.csv": b"3"})
    assert read(world) == world.visible() == {"a.csv": b"3"}


def test_a_revert_that_another_revert_has_overtaken_is_refused(world: World) -> None:
    states = history_of_three(world)
    overtaken = [True]

    def overtake(name: str) -> None:
        if name == "task-commit.create.after" and overtaken:
            overtaken.clear()
            revert(world, 1)

    FAILPOINTS.observer = overtake
    try:
        with pytest.raises(ConflictError, match="made them live again, since the revert began"):
            revert(world, 1)
    finally:
        FAILPOINTS.observer = None
    assert read(world) == world.visible() == states[1]


def test_a_revert_that_dies_at_any_call_is_whole_or_nothing_after_recovery(world: World) -> None:
    calls: list[str] = []
    states = history_of_three(world)
    FAILPOINTS.observer = dying(calls.append)
    try:
        revert(world, 1)
    finally:
        FAILPOINTS.observer = None
    assert len(calls) > 20
    for number in sample(range(len(calls)), 5):
        revert(world, 3)
        seen = iter(range(number + 1))

        def crash(_: str, seen: object = seen) -> None:
            if next(seen, None) is None:  # type: ignore[call-overload]
                raise Crash

        FAILPOINTS.observer = dying(crash)
        try:
            revert(world, 1)
        except Crash:
            pass
        finally:
            FAILPOINTS.observer = None
        world.recover()
        assert read(world) == world.visible()
        assert read(world) in (states[1], states[3])
        assert read(world, 1) == states[1]


def test_a_revert_in_s3_that_dies_at_any_request_is_whole_or_nothing_after_recovery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_world(tmp_path, monkeypatch) as s3:
        states = history_of_three(s3.driver)
        moments = s3.moments_of(partial(revert, s3.driver, 1))
        for number, moment in sample(list(enumerate(moments)), 8):
            s3.go_back_to(moment)
            assert read(s3.other) in (states[1], states[3]), number
            s3.other.recover()
            sweep_uploads(s3.other.url, dry_run=False, settings=s3.other.settings, clock=s3.other.clock)
            assert read(s3.other) == s3.other.visible(), number
            assert read(s3.other) in (states[1], states[3]), number
            assert [read(s3.other, turn) for turn in range(4)] == states, number
            assert s3.other.open_uploads() == [], number
        assert read(s3.other) == states[1]


def run_history(world: World, seed: int) -> None:
    """Run random jobs, reverts and sweeps; after each, every turn reads as in the model, or is refused."""
    rng, states, tagged = random.Random(seed), [State()], set[int]()
    keep_turns = rng.randrange(4)
    set_history_rule(world.store, HistoryRule(keep_s=0, keep_turns=keep_turns))
    for number in range(12):
        files = {f"day={rng.randrange(3)}/{number}.csv": rng.randbytes(4)}
        (day,) = {key.partition("/")[0] for key in files}
        now, action = states[-1], rng.choice(["append", "replace", "partition", "revert", "sweep", "tag"])
        if action == "append":
            world.run(f"job-{number}", files)
            states.append({**now, **files})
        elif action == "replace":
            world.run(f"job-{number}", files, mode="replace")
            states.append(files)
        elif action == "partition":
            world.run(f"job-{number}", files, mode="replace", scope="partitions")
            kept = {key: data for key, data in now.items() if not key.startswith(f"{day}/")}
            states.append({**kept, **files})
        elif action == "tag" and len(states) > 1:
            create_tag(DestinationLog(world.store), f"t{number}", len(states) - 1, world.clock)
            tagged.add(len(states) - 1)
        elif action == "revert" and len(states) > 1:
            turn = rng.randrange(max(1, len(states) - 1 - keep_turns), len(states))
            revert(world, turn)
            states.append(states[turn])
        elif action == "sweep":
            sweep_uploads(world.url, dry_run=False, settings=world.settings, clock=world.clock)
            world.clock.sleep(world.settings.orphan_age_s)
        last = len(states) - 1
        assert world.visible() == states[-1], (seed, number, action)
        for turn, state in enumerate(states):
            try:
                assert read(world, turn) == state, (seed, number, action, turn)
            except InvalidInputError:
                assert turn < last - keep_turns, (seed, number, action, turn)
                assert turn not in tagged, (seed, number, action, turn)


@pytest.mark.parametrize("seed", range(rounds(10, 100)))
def test_each_kept_turn_of_a_random_history_reads_as_it_was(world: World, seed: int) -> None:
    run_history(world, seed)
