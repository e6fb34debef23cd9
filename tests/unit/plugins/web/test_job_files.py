"""The files, attempts and plan of a job, page by page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lockgate.plugins.web.answers import cursor
from lockgate.plugins.web.api import job_files
from lockgate.storage_core.commit.records.job_record import JobAttemptId
from lockgate.storage_core.stores.instrumented import InstrumentedStore
from tests.support.commit.crash_harness import die_at
from tests.support.commit.destination import World, plain, write
from tests.support.web.jobs import client_of, get, job_in


def pages(world: World, path: str, limit: int) -> Iterator[dict[str, Any]]:
    after = ""
    with client_of(world) as client:
        while after is not None:
            query: dict[str, str | int] = {"destination": world.url, "limit": limit, "after": after}
            page = client.get(f"/api/v1{path}", params=query).json()
            assert len(page["items"]) <= limit
            yield page
            after = page["next_after"]


def items(world: World, path: str, limit: int) -> list[dict[str, Any]]:
    return [item for page in pages(world, path, limit) for item in page["items"]]


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let shards of plans, reports and the log have three files."""
    for module in ("decide.additions", "decide.plan", "publish.commit_context", "destination.log"):
        monkeypatch.setattr(f"lockgate.storage_core.commit.{module}.SHARD_ENTRIES", 3)
    monkeypatch.setattr("lockgate.plugins.web.api.job_files.SHARD_ENTRIES", 3)


def replacing(world: World) -> Any:
    """Return an open job of four tasks with five files each, which replaces four files."""
    world.run("old", {f"old-{number}.csv": b"1234" for number in range(4)})
    job = world.open_job("sales", mode="replace")
    for task in range(4):
        write(job, f"t{task}", {f"{task}-{number}.csv": b"x" * (task + 1) for number in range(5)})
    job.close()
    return job


NAMES = sorted(f"{task}-{number}.csv" for task in range(4) for number in range(5))


@pytest.mark.parametrize("limit", [2, 7, 200])
def test_files_are_pending_then_planned_then_have_a_result_and_no_page_misses_one(
    world: World, limit: int
) -> None:
    job = replacing(world)
    path = f"/jobs/{job.job_id}/files"
    pending = items(world, path, limit)
    assert sorted(plain(file["key"]) for file in pending) == NAMES
    assert {file["state"] for file in pending} == {"pending"}
    assert pending[0]["detail"].startswith("task t0, attempt ")

    die_at("complete.complete.before", lambda: world.attach(job.job_id).commit())
    planned = items(world, path, limit)
    assert sorted(plain(file["key"]) for file in planned[:20]) == NAMES
    assert [file["detail"] for file in planned[20:]] == ["it is removed after the publication"] * 4
    plan = get(world, f"/jobs/{job.job_id}/plan")
    assert (plan["added_files"], plan["added_bytes"], plan["removed_files"]) == (20, 50, 4)

    world.attach(job.job_id).finish()
    ended = items(world, path, limit)
    states = {plain(file["key"]): file["state"] for file in ended}
    assert states == dict.fromkeys(NAMES, "published") | {
        f"old-{number}.csv": "removed" for number in range(4)
    }
    sizes = {plain(file["key"]): file["size_bytes"] for file in ended if file["state"] == "published"}
    assert sizes == {name: int(name[0]) + 1 for name in NAMES}


def test_a_page_that_belongs_to_an_earlier_phase_says_so(world: World) -> None:
    job = replacing(world)
    after = get(world, f"/jobs/{job.job_id}/files", limit=2)["next_after"]
    world.attach(job.job_id).commit()
    page = get(world, f"/jobs/{job.job_id}/files", limit=2, after=after)
    assert page["items"] == []
    assert "begin with the first page" in page["unknown"][0]
    with client_of(world) as client:
        query = {"destination": world.url, "after": "x"}
        assert client.get(f"/api/v1/jobs/{job.job_id}/files", params=query).status_code == 400


def test_the_files_of_an_aborted_job_have_the_result_aborted(world: World) -> None:
    job = job_in(world, "failed")
    assert {file["state"] for file in items(world, f"/jobs/{job.job_id}/files", 1)} == {"aborted"}


def test_a_deep_page_reads_as_much_as_the_first(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    job = replacing(world)
    world.attach(job.job_id).commit()
    requests: list[str] = []

    def counted(self: InstrumentedStore, key: str, **options: Any) -> bytes:
        requests.append(key)
        return self.inner.get(key, **options)

    monkeypatch.setattr(InstrumentedStore, "get", counted)
    counts = []
    for _ in pages(world, f"/jobs/{job.job_id}/files", 3):
        counts.append(len(requests))
        requests.clear()
    assert len(counts) == 8
    assert max(counts) <= 8


@pytest.mark.parametrize("limit", [2, 7, 50])
def test_a_page_reads_a_bounded_part_of_the_pending_sets_and_the_next_one_the_rest(
    world: World, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(job_files, "READ_BYTES", 1)  # so one set a page
    job = replacing(world)
    files = list(pages(world, f"/jobs/{job.job_id}/files", limit))
    assert sorted(plain(file["key"]) for page in files for file in page["items"]) == NAMES
    assert {len(page["items"]) for page in files} == {2: {2, 1}, 7: {5}, 50: {5}}[limit]
    attempts = list(pages(world, f"/jobs/{job.job_id}/attempts", limit))
    assert [[one["task_id"] for one in page["items"]] for page in attempts] == [
        ["t0"],
        ["t1"],
        ["t2"],
        ["t3"],
    ]


@pytest.mark.parametrize("past", [-1, 10**30, 37])
def test_a_cursor_past_the_files_of_a_set_is_no_fault_of_the_server(world: World, past: int) -> None:
    job = replacing(world)
    [first, *_] = [info.key for info in job._folder.task_records()]
    after = cursor("files", ("pending", first.removeprefix(job._folder.key("tasks/")), 0, past))
    assert get(world, f"/jobs/{job.job_id}/files", after=after)["unknown"] == []


def test_a_pending_set_that_cannot_be_read_is_named_and_the_others_are_shown(world: World) -> None:
    job = replacing(world)
    broken = next(iter(job._folder.pending_sets())).record
    world.store.put(job._folder.pending_set_key(broken.task_id, broken.attempt_id), b"{")
    found = list(pages(world, f"/jobs/{job.job_id}/files", 4))
    assert sum(len(page["items"]) for page in found) == 15
    assert [broken.attempt_id in text for page in found for text in page["unknown"]] == [True]
    attempts = get(world, f"/jobs/{job.job_id}/attempts")
    assert [attempt["task_id"] for attempt in attempts["items"]] == ["t1", "t2", "t3"]
    assert len(attempts["unknown"]) == 1


def test_of_several_attempts_the_one_that_the_commit_takes_counts(world: World) -> None:
    job = world.open_job("sales")
    for number in (1, 2, 3):
        with job.attempt("t", f"try-{number}", try_number=number) as attempt, attempt.open("a.csv") as file:
            file.write(b"1")
    write(job, "u", {"b.csv": b"1"})
    job.abort_attempt("t", "try-3")
    path = f"/jobs/{job.job_id}/attempts"
    for limit in (1, 2, 50):
        found = {one["attempt_id"]: one["counts"] for one in items(world, path, limit)}
        assert {name: found[name] for name in ("try-1", "try-2", "try-3")} == {
            "try-1": False,
            "try-2": True,
            "try-3": False,
        }
        assert len(found) == 4
    job.close()


def test_an_attempt_of_an_earlier_driver_does_not_count(world: World) -> None:
    first = world.open_job("sales")
    write(first, "t", {"a.csv": b"1"})
    first.close()
    second = world.open_job("sales")
    write(second, "t", {"a.csv": b"2"})
    second.close()
    found = items(world, f"/jobs/{first.job_id}/attempts", 50)
    assert {JobAttemptId(one["job_attempt"]): one["counts"] for one in found} == {
        first.job_attempt: False,
        second.job_attempt: True,
    }


def test_after_the_end_the_registry_has_the_attempts(journal_world: World) -> None:
    world = journal_world
    with world.open_job("sales") as job:
        for task in range(3):
            write(job, f"t{task}", {f"{task}.csv": b"1"})
        job.commit()
    found = items(world, f"/jobs/{job.job_id}/attempts", 2)
    assert [(one["task_id"], one["files"], one["size_bytes"]) for one in found] == [
        ("t0", 1, 1),
        ("t1", 1, 1),
        ("t2", 1, 1),
    ]
    whole = items(world, f"/jobs/{job.job_id}/attempts", 50)
    assert [one["counts"] for one in whole] == [True] * 3, "the job publishes as many files as these have"


def test_of_two_attempts_of_a_task_it_is_not_known_after_the_end_which_one_counted(
    journal_world: World,
) -> None:
    world = journal_world
    with world.open_job("sales") as job:
        write(job, "t0", {"0.csv": b"1"})
        write(job, "t0", {"0.csv": b"2"})
        job.commit()
    found = items(world, f"/jobs/{job.job_id}/attempts", 50)
    assert [one["counts"] for one in found] == [None, None]


def test_no_attempt_of_a_failed_job_counts(journal_world: World) -> None:
    world = journal_world
    with world.open_job("sales") as job:
        write(job, "t0", {"0.csv": b"1"})
        job.abort("by hand")
    found = items(world, f"/jobs/{job.job_id}/attempts", 50)
    assert [one["counts"] for one in found] == [False]


def test_an_undecided_job_has_no_plan(world: World) -> None:
    job = job_in(world, "lapsed")
    with client_of(world) as client:
        answer = client.get(f"/api/v1/jobs/{job.job_id}/plan", params={"destination": world.url})
    assert answer.status_code == 404
    assert "not decided" in answer.json()["detail"]
