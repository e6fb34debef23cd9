"""Damaged records of a destination's log are named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping

import pytest

from lockgate.storage_core.commit.recovery.log_check import check_log
from lockgate.storage_core.errors import LockgateError, MalformedLogError
from lockgate.storage_core.failpoints import FAILPOINTS
from tests.support.cli import Run
from tests.support.commit.destination import World, write

LOG = "_lockgate/log/"


@pytest.fixture(autouse=True)
def unobserved() -> Iterator[None]:
    yield
    FAILPOINTS.observer = None


@pytest.fixture
def history(world: World) -> World:
    """Return a destination with an append, a replace, a failed job in turn 3, and an append."""
    world.run("first", {"a.csv": b"1", "b.csv": b"22"})
    world.run("second", {"c.csv": b"333"}, mode="replace", scope="destination")
    job = died_at_turn(world)
    job.abort()
    world.run("fourth", {"d.csv": b"4444"})
    return world


def died_at_turn(world: World) -> object:
    """Return an undecided job that holds turn 3."""
    job = world.open_job("third")
    write(job, "t", {"x.csv": b"5"})

    def stop(name: str) -> None:
        if name == "turn.create.after":
            FAILPOINTS.observer = None
            raise LockgateError("the commit fails after it has its turn")

    FAILPOINTS.observer = stop
    with pytest.raises(LockgateError):
        job.commit()
    return job


def damage(world: World, key: str) -> bytes:
    before = world.store.get(key)
    world.store.put(key, before[: len(before) // 2])
    return before


def list_of(world: World, turn: int, which: str) -> str:
    """Return the key of the only list of added or removed files of a turn."""
    (ref,) = json.loads(world.store.get(f"{LOG}{turn:08d}.json"))[which]
    return f"_lockgate/shards/{ref['digest']}.json"


RECORDS: Mapping[str, Callable[[World], str]] = {
    **{f"claim {n}": lambda _, n=n: f"{LOG}{n:08d}.turn" for n in range(1, 5)},
    **{f"outcome {n}": lambda _, n=n: f"{LOG}{n:08d}.json" for n in range(1, 5)},
    **{f"files added by {n}": lambda world, n=n: list_of(world, n, "added") for n in (1, 2, 4)},
    "files removed by 2": lambda world: list_of(world, 2, "removed"),
}


@pytest.mark.parametrize("record", RECORDS)
@pytest.mark.parametrize("fault", ["cut", "lost"])
def test_a_damaged_record_of_the_log_is_named(history: World, record: str, fault: str) -> None:
    live, key = history.live(), RECORDS[record](history)
    before = damage(history, key)
    if fault == "lost":
        history.store.delete(key)
    (found,) = check_log(history.store)
    assert (found.key, str(found.turn)) == (key, record[-1])

    history.store.put(key, before)
    assert (check_log(history.store), history.live()) == ([], live)


def test_a_damaged_checkpoint_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockgate.storage_core.commit.destination.log.CHECKPOINT_TURNS", 2)
    for number in range(3):
        world.run(f"job-{number}", {f"{number}.csv": b"1"})
    key = f"{LOG}00000002.checkpoint"
    damage(world, key)
    assert [found.key for found in check_log(world.store)] == [key]


def test_a_commit_names_the_newest_outcome_if_it_is_gone_or_cannot_be_read(history: World) -> None:
    key = f"{LOG}00000004.json"
    before = damage(history, key)
    with pytest.raises(MalformedLogError, match=rf"{key}.*`lockgate store check {history.store.url}`"):
        history.run("next", {"e.csv": b"55555"})
    history.store.delete(key)
    with pytest.raises(MalformedLogError, match=rf"{key} is gone.*restore it"):
        history.run("another", {"e.csv": b"55555"})
    history.store.put(key, before)
    history.run("last", {"f.csv": b"6"})


def test_the_command_names_a_damaged_record(history: World, run: Run) -> None:
    damage(history, f"{LOG}00000002.json")
    checked = run("store", "check", history.url)
    assert checked.exit_code == 3
    assert "turn 2 of the log" in checked.output
    assert "restore these records" in checked.output.replace("\n", " ")
