"""Damaged and lost records of a destination's log are named."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import pytest

from lockgate.storage_core.commit.recovery.log_check import check_log
from lockgate.storage_core.errors import LockgateError, MalformedLogError
from lockgate.storage_core.failpoints import FAILPOINTS
from tests.support.cli import Run
from tests.support.commit.destination import World, write

LOG = "_lockgate/log/"


@pytest.fixture
def history(world: World) -> World:
    """Return a destination with an append, a replace, an aborted job in turn 3, and an append."""
    world.run("first", {"a.csv": b"1", "b.csv": b"22"})
    world.run("second", {"c.csv": b"333"}, mode="replace", scope="destination")
    abort_in_turn(world)
    world.run("fourth", {"d.csv": b"4444"})
    return world


def abort_in_turn(world: World) -> None:
    """Abort a job that has claimed turn 3."""
    job = world.open_job("third")
    write(job, "t", {"x.csv": b"5"})

    def stop(name: str) -> None:
        if name == "turn.create.after":
            FAILPOINTS.observer = None
            raise LockgateError("the commit fails after it has its turn")

    FAILPOINTS.observer = stop
    with pytest.raises(LockgateError):
        job.commit()
    job.abort()


def cut(world: World, key: str) -> None:
    data = world.store.get(key)
    world.store.put(key, data[: len(data) // 2])


def list_of(world: World, turn: int, which: str) -> str:
    """Return the key of the only list of added or removed files of a turn."""
    (ref,) = json.loads(world.store.get(f"{LOG}{turn:08d}.json"))[which]
    return f"_lockgate/shards/{ref['digest']}.json"


RECORDS: Mapping[str, Callable[[World], str]] = {
    "claim 3": lambda _: f"{LOG}00000003.turn",
    "claim 4": lambda _: f"{LOG}00000004.turn",
    "outcome 3": lambda _: f"{LOG}00000003.json",
    "outcome 4": lambda _: f"{LOG}00000004.json",
    "files added by 1": lambda world: list_of(world, 1, "added"),
    "files removed by 2": lambda world: list_of(world, 2, "removed"),
}


@pytest.mark.parametrize("record", RECORDS)
@pytest.mark.parametrize("fault", ["cut", "lost"])
def test_a_damaged_record_of_the_log_is_named(history: World, record: str, fault: str) -> None:
    assert check_log(history.store) == []
    key = RECORDS[record](history)
    if fault == "cut":
        cut(history, key)
    else:
        history.store.delete(key)
    (found,) = check_log(history.store)
    assert (found.key, str(found.turn)) == (key, record[-1])


def test_a_commit_says_so_if_the_newest_outcome_is_gone_or_cannot_be_read(history: World) -> None:
    key = f"{LOG}00000004.json"
    cut(history, key)
    with pytest.raises(MalformedLogError, match=rf"{key}.*`lockgate store check {history.store.url}`"):
        history.run("next", {"e.csv": b"55555"})
    history.store.delete(key)
    with pytest.raises(MalformedLogError, match=rf"{key} is gone.*restore it from"):
        history.run("another", {"e.csv": b"55555"})


def test_a_damaged_checkpoint_may_be_deleted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockgate.storage_core.commit.destination.log.CHECKPOINT_TURNS", 2)
    for number in range(3):
        world.run(f"job-{number}", {f"{number}.csv": b"1"})
    live, key = world.live(), f"{LOG}00000002.checkpoint"
    cut(world, key)
    with pytest.raises(LockgateError):
        world.live()
    assert [fault.key for fault in check_log(world.store)] == [key]
    world.store.delete(key)
    assert (check_log(world.store), world.live()) == ([], live)


def test_the_command_names_the_record(history: World, run: Run) -> None:
    cut(history, f"{LOG}00000002.json")
    checked = run("store", "check", history.url)
    assert checked.exit_code == 3
    assert "turn 2 of the log" in checked.output
    assert "log of the destination: damaged" in checked.output
