"""Destinations: their live data, their log as a history, and what blocks them."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockgate.plugins.web.api import destinations
from lockgate.plugins.web.api.destinations import live_totals
from lockgate.plugins.web.request_reads import Reads
from lockgate.storage_core.commit.records import layout
from tests.support.commit.crash_harness import die_at
from tests.support.commit.destination import World, write
from tests.support.web.jobs import client_of, get


def test_the_log_is_a_history_with_the_newest_turn_first_page_by_page(world: World) -> None:
    world.run("a", {"a.csv": b"12", "b.csv": b"3"})
    world.run("b", {"c.csv": b"4"})
    last = world.run("c", {"d.csv": b"567"}, mode="replace")
    first = get(world, "/destinations/log", limit=2)
    assert [(turn["turn"], turn["verdict"]) for turn in first["items"]] == [
        (3, "published"),
        (2, "published"),
    ]
    newest = first["items"][0]
    assert newest["job_id"] == last.job_id
    assert (newest["added_files"], newest["added_bytes"]) == (1, 3)
    assert (newest["removed_files"], newest["removed_bytes"]) == (3, 4)
    second = get(world, "/destinations/log", limit=2, after=first["next_after"])
    assert [turn["turn"] for turn in second["items"]] == [1]
    assert second["next_after"] is None


def test_live_data_are_exact_after_a_replacement_of_foreign_files(world: World) -> None:
    world.run("a", {"a.csv": b"12"})
    world.store.put("foreign.csv", b"not of a job")
    world.run("b", {"b.csv": b"345", "c.csv": b"6"}, mode="replace")
    found = get(world, "/destinations/detail")
    assert (found["turn"], found["live_files"], found["live_bytes"]) == (2, 2, 4)
    assert found["average_file_bytes"] == 2
    assert (found["hint"], found["blocked"], found["unknown"]) == ("", "", [])


def test_live_data_of_many_lists_are_totals_and_say_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(destinations, "EXACT_SHARDS", 1)
    world.run("a", {"a.csv": b"12"})
    assert get(world, "/destinations/detail")["live_files"] == 1  # appends need no lists
    world.run("b", {"b.csv": b"345", "c.csv": b"6"}, mode="replace")
    found = get(world, "/destinations/detail")
    assert (found["live_files"], found["live_bytes"], found["live_rows"]) == (2, 4, None)
    assert "not counted one by one" in found["unknown"][0]


def test_many_small_files_get_a_hint_at_compaction(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(destinations, "MANY_FILES", 2)
    world.run("a", {"a.csv": b"12", "b.csv": b"3"})
    assert "fewer files" in get(world, "/destinations/detail")["hint"]


def test_a_turn_whose_decided_job_has_no_driver_blocks_and_names_the_remedy(world: World) -> None:
    job = world.open_job("sales")
    write(job, "t", {"a.csv": b"1"})
    die_at("complete.complete.before", job.commit)
    assert get(world, "/destinations/detail")["blocked"] == ""  # its driver may finish it
    world.clock.sleep(1_000)
    blocked = get(world, "/destinations/detail")["blocked"]
    assert f"Turn 1 is held by job {job.job_id}." in blocked
    assert "recover it" in blocked
    (turn,) = get(world, "/destinations/log")["items"]
    assert (turn["verdict"], turn["job_id"], turn["decided_s"]) == (None, job.job_id, None)
    world.store.put(job._folder.key("COMMIT_STARTED"), b"{")
    assert "lockgate jobs quarantine" in get(world, "/destinations/detail")["blocked"]


def test_a_turn_of_the_log_that_cannot_be_read_is_named_and_the_others_are_shown(world: World) -> None:
    for name in "abc":
        world.run(name, {f"{name}.csv": b"1"})
    world.store.put(layout.turn_outcome(2), b"{")
    page = get(world, "/destinations/log")
    assert [turn["turn"] for turn in page["items"]] == [3, 1]
    assert layout.turn_outcome(2) in page["unknown"][0]
    found = get(world, "/destinations/detail")
    assert (found["turn"], found["live_files"]) == (3, None)
    assert "lockgate store repair" in found["unknown"][0]


def test_live_files_and_bytes_over_time_follow_the_log_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_s = world.clock.now_s()
    for number in range(4):
        world.run(f"job-{number}", {f"{number}-{each}.csv": b"123" for each in range(2)})
        world.clock.sleep(100)
    reads = Reads(world.settings, destinations=[world.url], clock=world.clock)
    ends_s = [begin_s - 1, begin_s + 50, begin_s + 150, begin_s + 250, begin_s + 350]
    assert live_totals(reads, world.url, ends_s, "files") == (0, 2, 4, 6, 8)
    assert live_totals(reads, world.url, ends_s, "bytes") == (0, 6, 12, 18, 24)
    assert get(world, "/charts/live-files", days=2)["values"][-1] == 8
    assert get(world, "/charts/live-bytes", days=2)["values"][-1] == 24
    monkeypatch.setattr(destinations, "CHARTED_TURNS", 2)
    assert live_totals(reads, world.url, ends_s, "files") == (None, None, None, 6, 8)


def test_known_destinations_are_listed_and_no_other_is_read(journal_world: World, tmp_path: Path) -> None:
    world = journal_world
    world.run("a", {"a.csv": b"1"})
    hosted = [str(tmp_path / name) for name in ("other", "dest")]
    reads = Reads(world.settings, destinations=hosted, clock=world.clock)
    with client_of(world, reads) as client:
        first = client.get("/api/v1/destinations", params={"limit": 1}).json()
        query = {"limit": "1", "after": first["next_after"]}
        second = client.get("/api/v1/destinations", params=query).json()
        assert second["next_after"] is None
        assert [row["destination"] for page in (first, second) for row in page["items"]] == [
            f"file://{tmp_path}/dest",
            f"file://{tmp_path}/other",
        ]
        for path in ("detail", "log"):
            answer = client.get(f"/api/v1/destinations/{path}", params={"destination": str(tmp_path)})
            assert answer.status_code == 404
        nothing = client.get("/api/v1/destinations/detail", params={"destination": hosted[0]}).json()
    assert (nothing["turn"], nothing["live_files"], nothing["unknown"]) == (None, 0, [])


def test_a_list_of_destinations_has_the_number_of_jobs_that_have_not_ended(journal_world: World) -> None:
    journal_world.run("a", {"a.csv": b"1"})
    page = {"destination": None}
    [row] = get(journal_world, "/destinations", **page)["items"]
    assert row["unended"] == 0
    journal_world.open_job("b")
    journal_world.open_job("c")

    [row] = get(journal_world, "/destinations", **page)["items"]
    assert row["unended"] == 2
    with client_of(journal_world) as client:
        assert "2 jobs have not ended" in client.get("/destinations").text
        assert "2 jobs have not ended" in client.get("/uploads").text
