"""What a commit costs does not grow with the turns that a destination has had."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from lockgate.storage_core.commit.destination import log
from lockgate.storage_core.commit.destination.log import DestinationLog
from lockgate.storage_core.commit.destination.visible_files import visible_files
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.codec import encode
from lockgate.storage_core.commit.records.job_listing import job_ids
from lockgate.storage_core.commit.records.log_records import CheckpointHint, LogCheckpoint
from lockgate.storage_core.commit.recovery import retention
from lockgate.storage_core.commit.recovery.upload_sweep import sweep_uploads
from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.stores.instrumented import InstrumentedStore
from lockgate.storage_core.stores.local import listing
from lockgate.storage_core.stores.local.store import LocalStore
from tests.support.commit.destination import World


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the keys that listings have returned so far."""
    keys: list[str] = []
    pages = LocalStore.pages

    def counted(store: LocalStore, *arguments: Any, **options: Any) -> Iterator[Any]:
        for page in pages(store, *arguments, **options):
            keys.extend(info.key for info in page)
            yield page

    monkeypatch.setattr(LocalStore, "pages", counted)
    return keys


def make(world: World, folder: str, number: int) -> None:
    path = Path(world.url) / folder
    path.mkdir(parents=True, exist_ok=True)
    for each in range(number):
        (path / f"{each:08d}.json").touch()


def test_a_listing_of_the_data_skips_all_but_one_of_the_records(world: World, listed: list[str]) -> None:
    data = ["2026/00000000.json", "_x=1/00000000.json", "day=1/00000000.json", "zone=1/00000000.json"]
    for key in data:
        make(world, key.rpartition("/")[0], 1)
    make(world, "_lockgate/shards", 3)
    make(world, "day=1/_lockgate/shards", 3)  # a destination inside, whose data are not this one's
    make(world, "zone=1/_lockgated", 1)
    found = [info.key for info in visible_files(world.store)]
    assert found == [key for key in data if not key.startswith("day=1/")]
    assert [key for key in listed if "/_lockgate/" in f"/{key}"] == [
        "_lockgate/shards/00000000.json",
        "day=1/_lockgate/shards/00000000.json",
    ]


def turn_of_old(world: World, turn: int) -> None:
    """Put a destination of one turn in the place after this turn's checkpoint."""
    first = DestinationLog(world.store).turn(1)
    assert first.outcome is not None
    for name in (f"{each:08d}.{kind}" for each in range(2, turn) for kind in ("turn", "json")):
        (Path(world.url) / "_lockgate/log" / name).touch()
    make(world, "_lockgate/ids", turn)
    for key, record in {
        layout.turn_claim(turn): first.claim,
        layout.turn_outcome(turn): structs.replace(first.outcome, turn=turn),
        layout.checkpoint(turn): LogCheckpoint(turn=turn, live=first.outcome.added, columns=None),
        layout.CHECKPOINT_HINT: CheckpointHint(turn=turn),
    }.items():
        world.store.put(key, encode(record))


@pytest.mark.parametrize("mode", ["append", "replace"])
def test_a_commit_after_a_checkpoint_reads_no_names_and_sends_no_requests_for_earlier_turns(
    world: World, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: Counter[str] = Counter()
    ordered, call = listing._ordered, InstrumentedStore._call

    def counted(folder: int) -> list[str]:
        names = ordered(folder)
        counts["names"] += len(names)
        return names

    def sent(store: InstrumentedStore, verb: str, request: Callable[[], object]) -> object:
        counts[verb] += 1
        return call(store, verb, request)

    def cost(turn: int) -> Counter[str]:
        there = replace(world, url=f"{world.url}-{turn}")
        there.run("first", {"a.csv": b"1"})
        turn_of_old(there, turn)
        counts.clear()
        there.run("next", {"b.csv": b"2"}, mode=mode)
        assert there.manifest().turn == turn + 1
        assert set(there.visible()) == {"b.csv"} | ({"a.csv"} if mode == "append" else set())
        assert counts.pop("names") < 100
        return counts.copy()

    monkeypatch.setattr(os, "fsync", lambda file: None)
    monkeypatch.setattr(listing, "_ordered", counted)
    monkeypatch.setattr(InstrumentedStore, "_call", sent)
    assert cost(2_000) == cost(100)


@pytest.mark.parametrize("lost", [("turn", "json"), ("json",)])
def test_a_log_that_has_lost_a_turn_after_its_checkpoint_does_not_end_there(
    world: World, lost: tuple[str, ...]
) -> None:
    world.run("first", {"a.csv": b"1"})
    turn_of_old(world, 5)
    world.run("sales", {"b.csv": b"1"})
    world.run("sales", {"c.csv": b"1"})
    for kind in lost:
        world.store.delete(f"_lockgate/log/00000006.{kind}")
    with pytest.raises(LockgateError, match=r"00000006\.json"):
        world.run("sales", {"d.csv": b"1"})


def test_a_destination_shows_that_it_has_published_in_the_first_entries_of_its_log(
    world: World, listed: list[str]
) -> None:
    world.run("first", {"a.csv": b"1"})
    for turn in range(2, 300):
        (Path(world.url) / f"_lockgate/log/{turn:08d}.turn").touch()
    listed.clear()
    assert DestinationLog(world.store).has_published()
    assert listed == []


def test_a_set_up_lists_nothing_of_other_names_and_one_record_of_its_own(
    world: World, listed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        world.run(f"sales-{number}", {f"{number}.csv": b"1"})
        world.run("sales", {"a.csv": b"1"})
    listed.clear()
    assert world.open_job("sales").job_id == "sales-g4"
    assert listed == [
        "_lockgate/jobs/sales-g1/COMMIT_STARTED",
        "_lockgate/names/sales/999999998.json",
        "_lockgate/jobs/sales-g3/COMMIT_STARTED",
    ]


def test_a_sweep_keeps_the_folders_that_are_new_or_that_the_log_or_airflow_needs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "CHECKPOINT_TURNS", 2)
    monkeypatch.setattr(retention, "KEPT_FOLDERS", 3)

    def kept(days: int) -> list[str]:
        world.clock.sleep(days * 86_400.0)
        sweep_uploads(world.url, dry_run=False, settings=world.settings, clock=world.clock)
        return list(job_ids(world.store))

    for number in range(5):
        world.run("sales", {f"{number}.csv": b"1"}, mode="replace")
    world.open_job("aborted").abort()
    every = ["aborted-g1", *(f"sales-g{number}" for number in range(1, 6))]
    world.store.put("_lockgate/asset-events/sales-g1.json", b"{}")
    assert kept(days=0) == every
    assert kept(days=1) == ["aborted-g1", "sales-g1", "sales-g4", "sales-g5"]  # three, and Airflow's
    world.store.delete("_lockgate/asset-events/sales-g1.json")
    assert kept(days=30) == ["sales-g5"]  # its turn is after the checkpoint
    assert world.run("sales", {"again.csv": b"2"}, mode="replace").job_id == "sales-g6"
    assert kept(days=31) == []
    assert [info.key for page in world.store.pages("_lockgate/names/sales/") for info in page] == [
        "_lockgate/names/sales/999999994.json"
    ]
    assert world.run("sales", {"last.csv": b"3"}, mode="replace").job_id == "sales-g7"
    assert world.visible() == {"last.csv": b"3"}


def test_jobs_are_listed_once_each_beside_folders_of_many_records(world: World) -> None:
    jobs = [f"job-{number}-g1" for number in range(5)]
    for job, number in zip(jobs, (1_500, 3, 2_100, 400, 1), strict=True):
        make(world, f"_lockgate/jobs/{job}/tasks/t", number)
    assert list(job_ids(world.store)) == jobs
    assert list(job_ids(world.store, after_job=jobs[1])) == jobs[2:]
