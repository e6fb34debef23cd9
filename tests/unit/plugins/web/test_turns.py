"""The turns of a destination: who set each job up, and the rows and files that it added and removed."""

from __future__ import annotations

import getpass
import os
from collections.abc import Collection
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lockgate.plugins.web.access import Run
from lockgate.storage_core.commit.destination.kept_files import set_history_rule
from lockgate.storage_core.commit.destination.log import DestinationLog
from lockgate.storage_core.commit.destination.tags import create_tag
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.job_record import JobOrigin
from lockgate.storage_core.commit.records.log_records import HistoryRule
from lockgate.storage_core.commit.revert_to_turn import revert_to_turn
from lockgate.storage_core.errors import LockgateError
from tests.support.commit.crash_harness import die_at
from tests.support.commit.destination import World
from tests.support.web.jobs import client_of, get

ORIGIN = JobOrigin(dag_id="sales", run_id="run 1", task_id="write", map_index=3)
SHOWN = {"dag_id": "sales", "run_id": "run 1", "task_id": "write", "map_index": 3, "triggered_by": ""}


def turns(world: World) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = get(world, "/destinations/log")["items"]
    return found


def who(world: World) -> list[tuple[Any, str]]:
    return [(turn["origin"], turn["created_by"].rpartition(":")[2]) for turn in turns(world)]


def run(world: World, name: str, rows: dict[str, int | None], **options: object) -> str:
    with world.open_job(name, **options) as job:
        with job.attempt("t") as attempt:
            for path, number in rows.items():
                with attempt.open_upload(path) as file:
                    file.write(b"x" * 10)
                    file.rows = number
        job.commit()
    return job.job_id


def changes(world: World) -> list[tuple[Any, ...]]:
    names = ("added_files", "added_rows", "removed_files", "removed_rows", "removed_bytes")
    return [tuple(turn[name] for name in names) for turn in turns(world)]


@pytest.mark.parametrize("is_registered", [True, False])
def test_a_turn_names_the_task_or_else_the_process_that_set_its_job_up(
    world: World, journal_world: World, is_registered: bool
) -> None:
    at = journal_world if is_registered else world
    run(at, "a", {"a.csv": 1}, origin=ORIGIN)
    run(at, "b", {"b.csv": 1})
    assert who(at) == [(None, str(os.getpid())), (SHOWN, "")]
    assert turns(at)[0]["created_by"].startswith(f"{getpass.getuser()}@")


@pytest.mark.parametrize("is_registered", [True, False])
def test_a_turn_and_a_job_name_the_user_who_triggered_their_run(
    world: World, journal_world: World, is_registered: bool
) -> None:
    at = journal_world if is_registered else world
    job_id = run(at, "a", {"a.csv": 1}, origin=ORIGIN)
    run(at, "b", {"b.csv": 1})
    asked = []

    def users(runs: Collection[Run]) -> dict[Run, str]:
        asked.append(set(runs))
        return {("sales", "run 1"): "ada"}

    with client_of(at, run_users=users) as client:
        turns = client.get("/api/v1/destinations/log", params={"destination": at.url}).json()["items"]
        job = client.get(f"/api/v1/jobs/{job_id}", params={"destination": at.url}).json()

    by_ada = {**SHOWN, "triggered_by": "ada"}
    assert [turn["origin"] for turn in turns] == [None, by_ada]
    assert job["row"]["origin"] == by_ada
    assert asked == [{("sales", "run 1")}] * 2, "one question for a page"


def test_a_turn_without_an_outcome_has_its_writer_too(world: World) -> None:
    job = world.open_job("a", origin=ORIGIN)
    with job.attempt("t") as attempt, attempt.open("a.csv") as file:
        file.write(b"1")
    die_at("complete.complete.before", job.commit)
    assert [(turn["verdict"], turn["origin"]) for turn in turns(world)] == [(None, SHOWN)]


def test_the_registry_knows_who_wrote_after_the_jobs_folder_is_gone(journal_world: World) -> None:
    job_id = run(journal_world, "a", {"a.csv": 1}, origin=ORIGIN)
    journal_world.store.delete(f"{layout.job_folder(job_id)}job.json")
    assert who(journal_world) == [(SHOWN, "")]


def test_a_job_whose_record_is_gone_or_malformed_has_no_writer(world: World) -> None:
    gone, malformed = (run(world, name, {f"{name}.csv": 1}, origin=ORIGIN) for name in "ab")
    world.store.delete(f"{layout.job_folder(gone)}job.json")
    world.store.put(f"{layout.job_folder(malformed)}job.json", b"{")
    assert who(world) == [(None, ""), (None, "")]
    (unknown,) = get(world, "/destinations/log")["unknown"]
    assert unknown.startswith(f"turn 2: {layout.job_folder(malformed)}job.json: ")


def test_removed_rows_are_those_of_the_live_files_that_a_job_replaces(world: World) -> None:
    run(world, "a", {"day=1/a.csv": 5, "day=2/b.csv": 7})
    run(world, "b", {"day=1/c.csv": 1}, mode="replace", scope="partitions", committer="partitioned")
    run(world, "c", {"d.csv": 2}, mode="replace")
    assert changes(world) == [(1, 2, 2, 8, 20), (1, 1, 1, 5, 10), (2, 12, 0, 0, 0)]


@pytest.mark.parametrize("is_foreign", [True, False])
def test_rows_that_no_writer_counted_are_unknown_when_they_are_removed(
    world: World, is_foreign: bool
) -> None:
    run(world, "a", {"a.csv": 5 if is_foreign else None})
    if is_foreign:
        world.store.put("foreign.csv", b"not of a job")
    run(world, "b", {"b.csv": 1}, mode="replace")
    assert changes(world)[0][3] is None


def test_the_plan_of_a_decided_job_has_the_rows_that_it_removes(world: World) -> None:
    run(world, "a", {"a.csv": 5})
    job = world.open_job("b", mode="replace")
    with job.attempt("t") as attempt, attempt.open("b.csv") as file:
        file.write(b"1")
    die_at("complete.complete.before", job.commit)
    found = get(world, f"/jobs/{job.job_id}/plan")
    assert (found["removed_files"], found["removed_rows"], found["removed_bytes"]) == (1, 5, 10)


def revertible(world: World, limit: int = 50) -> list[int]:
    """Return the turns for which the pages offer a revert; those that they do not say why."""
    found, after = list[int](), None
    while True:
        page = get(world, "/destinations/log", limit=limit, **({"after": after} if after else {}))
        assert page["unknown"] == []
        found += [turn["turn"] for turn in page["items"] if not turn["no_revert"]]
        after = page["next_after"]
        if after is None:
            return found


def tried(world: World, last: int) -> list[int]:
    """Return the turns that a revert takes."""

    def is_taken(turn: int) -> bool:
        try:
            revert_to_turn(world.url, turn, dry_run=True, settings=world.settings, clock=world.clock)
        except LockgateError:
            return False
        return True

    return [turn for turn in range(last - 1, 0, -1) if is_taken(turn)]


def test_a_revert_is_offered_for_turns_whose_files_stay_on_every_page(world: World) -> None:
    run(world, "a", {"a.csv": 1})
    run(world, "b", {"b.csv": 1})
    assert revertible(world) == tried(world, 2) == [1]
    run(world, "c", {"c.csv": 1}, mode="replace")
    assert revertible(world) == tried(world, 3) == []
    assert turns(world)[1]["no_revert"].startswith("files that turn 3 replaced are gone")

    set_history_rule(world.store, HistoryRule(keep_s=1000.0, keep_turns=1))
    run(world, "d", {"d.csv": 1}, mode="replace")
    run(world, "e", {"e.csv": 1})
    run(world, "f", {"f.csv": 1}, mode="replace")
    for limit in (1, 2, 50):
        assert revertible(world, limit) == tried(world, 6) == [5, 4, 3]
    world.clock.now += 2000.0
    assert revertible(world, 1) == tried(world, 6) == [5, 4]
    create_tag(DestinationLog(world.store), "reported", 3, world.clock)
    assert revertible(world, 2) == tried(world, 6) == [5, 4, 3]
    assert [(turn["mode"], turn["tags"]) for turn in turns(world)[2:4]] == [
        ("replace", []),
        ("replace", ["reported"]),
    ]


def test_a_turn_has_its_versions_and_a_table_that_is_behind_says_why(world: World) -> None:
    with world.open_job("a", tables=["delta", "iceberg"], columns=[("x", "long")]) as job:
        with job.attempt("t") as attempt, attempt.open("a.parquet") as file:
            pq.write_table(pa.table({"x": [1]}), file)
        job.commit()
    assert [table["detail"] for table in get(world, "/destinations/detail")["tables"]] == ["", ""]
    run(world, "b", {"b.csv": 1})

    found = get(world, "/destinations/detail")["tables"]
    assert [(table["format"], table["turn"], table["behind"]) for table in found] == [
        ("delta", 1, 1),
        ("iceberg", 1, 1),
    ]
    assert all(f"{table['format']} is 1 turn behind: " in table["detail"] for table in found)
    assert [(turn["delta_version"], turn["iceberg_snapshot"]) for turn in turns(world)] == [
        (None, None),
        (0, 1),
    ]
