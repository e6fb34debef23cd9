"""Damaged records of a destination's log are named, and rebuilt where it is certain what they said."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from lockgate.storage_core.commit.recovery.log_check import check_log
from lockgate.storage_core.commit.recovery.log_repair import LogRepair, repair_log
from lockgate.storage_core.errors import LockgateError, MalformedLogError
from lockgate.storage_core.failpoints import FAILPOINTS
from tests.support.cli import Run
from tests.support.commit.destination import World, write
from tests.support.commit.malformed_records import died_at
from tests.support.commit.snapshots import one_by_one, snapshots_of

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
    """Return an undecided job that has turn 3."""
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


def repair(world: World, *, dry_run: bool = False) -> list[LogRepair]:
    return repair_log(world.url, dry_run=dry_run, settings=world.settings, clock=world.clock)


def list_of(world: World, turn: int, which: str) -> str:
    """Return the key of the only list of added or removed files of a turn."""
    (ref,) = json.loads(world.store.get(f"{LOG}{turn:08d}.json"))[which]
    return f"_lockgate/shards/{ref['digest']}.json"


RECORDS: Mapping[str, Callable[[World], str]] = {
    **{f"claim {n}": lambda _, n=n: f"{LOG}{n:08d}.turn" for n in (1, 3)},
    **{f"outcome {n}": lambda _, n=n: f"{LOG}{n:08d}.json" for n in (2, 3)},
    **{f"files added by {n}": lambda world, n=n: list_of(world, n, "added") for n in (1, 2, 4)},
    "files removed by 2": lambda world: list_of(world, 2, "removed"),
}


@pytest.mark.parametrize("record", RECORDS)
@pytest.mark.parametrize("fault", ["cut", "lost"])
def test_a_damaged_record_of_the_log_is_named_and_rebuilt(history: World, record: str, fault: str) -> None:
    live, visible, key = history.live(), history.visible(), RECORDS[record](history)
    before = damage(history, key)
    if fault == "lost":
        history.store.delete(key)
    (found,) = check_log(history.store)
    assert (found.key, str(found.turn)) == (key, record[-1])

    (repaired,) = repair(history)

    assert repaired.is_certain, repaired.action
    assert check_log(history.store) == repair(history) == []
    assert (history.live(), history.visible()) == (live, visible)
    rebuilt_same = "outcome" in record and record[-1] != "3"
    if rebuilt_same:
        new, old = json.loads(history.store.get(key)), json.loads(before)
        for document in (new, old):
            for ref in document.get("removed", ()):
                ref["size"] = 0
        assert new == old
    history.run("next", {"e.csv": b"55555"})
    assert history.live().keys() > live.keys()
    if fault == "cut":
        kept = [info.key for page in history.store.pages("_lockgate/quarantine/") for info in page]
        assert before[: len(before) // 2] in [history.store.get(copy) for copy in kept]


def test_a_commit_names_the_repair_if_the_newest_outcome_is_gone_or_cannot_be_read(history: World) -> None:
    key = f"{LOG}00000004.json"
    history.store.put(key, b"{")
    with pytest.raises(MalformedLogError, match=rf"{key}.*`lockgate store repair {history.store.url}`"):
        history.run("next", {"e.csv": b"55555"})
    history.store.delete(key)
    with pytest.raises(
        MalformedLogError, match=rf"{key} is gone.*`lockgate store repair {history.store.url}`"
    ):
        history.run("another", {"e.csv": b"55555"})
    assert all(each.is_certain for each in repair(history))
    history.run("last", {"f.csv": b"6"})


def test_a_dry_run_of_a_repair_changes_nothing(history: World) -> None:
    damage(history, f"{LOG}00000002.json")
    before = {path: path.read_bytes() for path in Path(history.url).rglob("*") if path.is_file()}
    (found,) = repair(history, dry_run=True)
    assert found.action == "rebuild it as published, from the receipt and the report of job second-g1"
    assert {path: path.read_bytes() for path in Path(history.url).rglob("*") if path.is_file()} == before


def test_several_damaged_records_are_rebuilt_together(history: World) -> None:
    live = history.live()
    damaged = [
        "claim 1",
        "outcome 2",
        "files added by 2",
        "files removed by 2",
        "outcome 3",
        "files added by 4",
    ]
    for key in [RECORDS[record](history) for record in damaged]:
        damage(history, key)
    assert all(each.is_certain for each in repair(history))
    assert (check_log(history.store), history.live()) == ([], live)


def test_a_record_is_rebuilt_after_a_later_one_that_proves_it(history: World) -> None:
    live = history.live()
    for key in [RECORDS[record](history) for record in ("files added by 1", "outcome 2")]:
        damage(history, key)
    assert [each.is_certain for each in repair(history)] == [True] * 2
    assert (check_log(history.store), history.live()) == ([], live)


def test_a_rebuilt_outcome_has_the_columns_of_the_destination(world: World) -> None:
    world.run("one", {"a.csv": b"1"}, columns=[("x", "int64"), ("y", "string")])
    world.run("two", {"b.csv": b"2"}, columns=[("x", "int64")], evolve_schema=True)
    key, columns = f"{LOG}00000002.json", world.manifest().all_columns
    damage(world, key)
    assert all(each.is_certain for each in repair(world))
    assert world.manifest().all_columns == columns


@pytest.mark.parametrize("point", ["decide.create.after", "complete.complete.after", "outcome.create.after"])
def test_the_newest_outcome_of_an_unfinished_job_is_decided_again(world: World, point: str) -> None:
    job = died_at(world, point)
    key = f"{LOG}00000002.json"
    world.store.put(key, b"{")
    (repaired,) = repair(world)
    assert "set it aside" in repaired.action
    world.recover()
    assert sorted(world.visible()) == ["a.csv", "b.csv", "old.csv"]
    assert len(world.live()) == 3
    assert job.phase() == "committed"


def test_an_outcome_that_nothing_proves_is_left_and_named(world: World) -> None:
    job = died_at(world, "outcome.create.after")
    world.run("next", {"c.csv": b"3"})
    key = f"{LOG}00000002.json"
    world.store.put(key, b"{")
    for name in ("job.json", "COMMIT_STARTED"):
        world.store.delete(job._folder.key(name))
    (found,) = repair(world)
    assert (found.key, found.is_certain, world.store.get(key)) == (key, False, b"{")
    assert found.action.startswith("not certain, so not rebuilt: no job sales-g1")


def test_a_list_of_files_that_were_changed_by_hand_is_not_rebuilt(history: World) -> None:
    key = list_of(history, 4, "added")
    damage(history, key)
    (file,) = Path(history.url).glob("d-*.csv")
    file.unlink()
    file.write_bytes(b"another size")
    (found,) = repair(history)
    assert (found.is_certain, "4 bytes; its report names 1, and they have 12 bytes" in found.action) == (
        False,
        True,
    )


def test_a_damaged_checkpoint_is_written_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockgate.storage_core.commit.destination.log.CHECKPOINT_TURNS", 2)
    for number in range(3):
        world.run(f"job-{number}", {f"{number}.csv": b"1"})
    live = world.live()
    for damaged in (f"{LOG}00000002.checkpoint", None):
        record = json.loads(world.store.get(f"{LOG}00000002.checkpoint"))
        damage(world, damaged or f"_lockgate/shards/{record['live'][0]['digest']}.json")
        with pytest.raises(LockgateError):
            world.live()
        assert all(each.is_certain for each in repair(world))
        assert (check_log(world.store), world.live()) == ([], live)
        world.store.head(f"{LOG}00000002.checkpoint")


@pytest.mark.parametrize("record", ["outcome 2", "files added by 4", "files removed by 2"])
def test_a_repair_that_dies_at_any_call_can_be_repeated(
    history: World, record: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    world, live = one_by_one(history), history.live()
    damage(world, RECORDS[record](world))
    for snapshot in snapshots_of(world, lambda: repair(world), tmp_path_factory.mktemp("snapshots")):
        found = snapshot.world()
        repair(found)
        assert (check_log(found.store), found.live()) == ([], live), snapshot.points[0]


def test_the_commands_name_the_record_and_repair_it(history: World, run: Run) -> None:
    key = f"{LOG}00000002.json"
    damage(history, key)
    checked = run("store", "check", history.url)
    assert checked.exit_code == 3
    assert "turn 2 of the log" in checked.output
    assert f"lockgate store repair {history.store.url}" in checked.output.replace("\n", " ")
    dry = run("store", "repair", history.url)
    assert (dry.exit_code, "a dry run: nothing was changed; add --yes" in dry.output) == (0, True)
    assert run("store", "check", history.url).exit_code == 3
    assert run("store", "repair", history.url, "--yes").exit_code == 0
    again = run("store", "check", history.url)
    assert (again.exit_code, "log of the destination: read" in again.output) == (0, True)
    assert "can be read" in run("store", "repair", history.url, "--yes").output
