"""`_SUCCESS` describes the last published job, refers to all its files, and is never used as a manifest."""

from __future__ import annotations

import hashlib
import json
import time
from typing import Any

import pytest

from lockgate.storage_core.commit.publish import success_file
from lockgate.storage_core.commit.records.layout import SUCCESS
from lockgate.storage_core.failpoints import FAILPOINTS
from tests.support.commit.destination import Crash, World, write

FILES = {"day=1/a.csv": b"1\n", "day=2/b.csv": b"2\n" * 3}


def success_summary(world: World) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(world.store.get(SUCCESS))
    return document


def full_listing(world: World, summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all files that a reader finds by following the references in `_SUCCESS`."""
    shards = [json.loads(world.store.get(key)) for key in summary["shards"]]
    return [file for shard in shards for file in shard["files"]]


def test_the_success_file_names_the_job_its_files_and_its_duration(world: World) -> None:
    world.run("old", {"old.csv": b"0" * 10})
    with world.open_job("sales", mode="replace", description="of May") as job:
        write(job, "t", FILES)
        world.clock.sleep(90)
        receipt = job.commit()
    summary = success_summary(world)
    assert (summary["name"], summary["version"], summary["job_id"]) == (
        "org.apache.hadoop.fs.s3a.commit.files.SuccessData/1",
        1,
        "sales-g1",
    )
    assert (summary["committer"], summary["mode"], summary["description"]) == ("magic", "replace", "of May")
    assert summary["started_s"] == job.record.created_s
    assert summary["committed_s"] == receipt.published_s
    assert summary["duration_s"] == 90
    assert summary["timestamp"] == int(receipt.published_s * 1000)
    assert summary["date"].startswith(time.strftime("%Y-%m-%dT", time.gmtime(receipt.published_s)))
    assert (summary["files"], summary["rows"], summary["size"]) == (2, None, 8)
    assert summary["diagnostics"]["created_by"] == job.record.created_by
    assert summary["hostname"] in summary["diagnostics"]["decided_by"]


def test_the_metrics_of_the_success_file_count_the_work_done(world: World) -> None:
    world.run("old", {"old.csv": b"0" * 10})
    world.run("sales", FILES, mode="replace")
    metrics = success_summary(world)["metrics"]
    assert (metrics["files_published"], metrics["files_removed"]) == (2, 1)
    assert (metrics["bytes_replaced"], metrics["parts"]) == (10, 2)
    assert (metrics["requests_begin"], metrics["requests_complete"]) == (2, 2)


def test_a_long_listing_is_truncated_and_its_links_lead_to_all_files(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(success_file, "MAX_LISTED", 3)
    world.run("sales", {f"{number:02}.csv": b"x" * number for number in range(10)})
    summary = success_summary(world)
    assert (len(summary["filenames"]), len(summary["listing"]), summary["omitted"]) == (3, 3, 7)
    listing = full_listing(world, summary)
    assert {file["key"]: file["size"] for file in listing} == world.keys() == world.live()
    assert [file["key"] for file in listing[:3]] == summary["filenames"]
    lines = "".join(f"{file['key']}\t{file['size']}\n" for file in listing)
    assert summary["listing_digest"] == hashlib.sha256(lines.encode()).hexdigest()
    outcome = json.loads(world.store.get(summary["log"]))
    assert [f"_lockgate/shards/{ref['digest']}.json" for ref in outcome["added"]] == summary["shards"]


@pytest.mark.parametrize("foreign", [b"", b"{}", b"not json", b'{"name":"org.apache.hadoop","version":1}'])
def test_a_success_file_of_another_tool_is_never_used_as_a_manifest(world: World, foreign: bytes) -> None:
    world.store.put("theirs.parquet", b"1")
    world.store.put(SUCCESS, foreign)
    assert success_file.find_success(world.store) is None
    assert world.live() == {}
    assert world.manifest().turn == 0
    world.run("sales", {"a.csv": b"1"})
    assert list(world.live()) == success_summary(world)["filenames"]
    world.store.put(SUCCESS, foreign)
    assert len(world.live()) == 1
    world.run("more", {"b.csv": b"1"})
    assert success_summary(world)["job_id"] == "more-g1"


def test_a_paused_finisher_never_overwrites_the_success_file_of_a_later_job(world: World) -> None:
    first = world.open_job("first")
    write(first, "t", {"a.csv": b"1"})

    def die(name: str) -> None:
        if name == "success.head.before":
            raise Crash(name)

    FAILPOINTS.observer = die
    with pytest.raises(Crash):
        first.commit()
    FAILPOINTS.observer = None
    world.run("second", {"b.csv": b"2"})
    world.recover()
    assert success_summary(world)["job_id"] == "second-g1"
    assert len(world.live()) == 2


def test_a_failed_job_keeps_the_previous_success_file(world: World) -> None:
    world.run("sales", {"a.csv": b"1"})
    with world.open_job("failed") as job:
        write(job, "t", {"b.csv": b"1"})
        job.abort()
    assert success_summary(world)["job_id"] == "sales-g1"
