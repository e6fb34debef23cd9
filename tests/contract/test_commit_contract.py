"""The commit protocol over every store: directory, moto and a real S3 server behave alike."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lockgate.storage_core.commit.records.phase import TERMINAL, JobPhase
from lockgate.storage_core.commit.recovery.upload_sweep import SweepReport, sweep_uploads
from lockgate.storage_core.commit.uploads.upload_owner import SweepAction, UploadFilter
from lockgate.storage_core.errors import JobFailedError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.stores import Store
from tests.support.commit.destination import World, crash_at, write
from tests.support.soak import rounds, soak_only

OLD = {"day=1/old a.csv": b"old a", "day=2/ü%2F.csv": b"old b"}
NEW = {"day=1/c.csv": b"new c", "day=3/d.csv": b"new d" * 3, "e.csv": b""}


@pytest.fixture
def world(
    kind: str,
    open_at: Callable[[str], Store],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> World:
    """Return a destination in the kind of store under test with one published job."""
    if kind in {"moto", "fake-s3"}:
        endpoint = request.getfixturevalue(f"{kind.removesuffix('-s3')}_endpoint")
        monkeypatch.setenv("LOCKGATE_S3_ENDPOINT_URL", endpoint)
    elif kind == "s3-server":
        monkeypatch.setenv("LOCKGATE_S3_ENDPOINT_URL", os.environ["LOCKGATE_TEST_S3_ENDPOINT"])
    world = World(tmp_path, open_at("dataset").url)
    world.run("old", OLD)
    return world


@pytest.mark.parametrize("mode", ["append", "replace"])
def test_a_job_is_invisible_until_its_commit_then_complete_and_leaves_no_open_uploads(
    world: World, mode: str
) -> None:
    with world.open_job("new", mode=mode) as job:
        write(job, "loser", {"loser.csv": b"1"})
        loser = next(job.pending_sets())
        write(job, "task", NEW)
        assert world.visible() == OLD
        winners = {found.task_id: found.attempt_id for found in job.pending_sets()}
        del winners[loser.task_id]
        receipt = job.commit(winners=winners)
    assert world.visible() == ({**OLD, **NEW} if mode == "append" else NEW)
    assert world.live() == world.keys()
    assert world.open_uploads() == []
    summary = json.loads(world.store.get("_SUCCESS"))
    listed = {entry["key"]: entry["size"] for entry in summary["listing"]}
    assert listed == {key: size for key, size in world.keys().items() if key in listed}
    assert len(listed) == receipt.files == len(NEW)


@pytest.mark.parametrize("in_the_way", ["day=9", "day=9/a.csv/x"], ids=["file", "folder"])
def test_a_name_that_the_store_cannot_hold_reverts_its_job_and_delays_no_other(
    world: World, in_the_way: str
) -> None:
    job = world.open_job("new", mode="replace", unique_filenames=False)
    write(job, "t", {"b.csv": b"new b", "day=9/a.csv": b"new a"})

    def obstruct(point: str) -> None:
        if point == "decide.create.after":
            FAILPOINTS.observer = None
            world.store.put(in_the_way, b"in the way")

    FAILPOINTS.observer = obstruct
    try:
        job.commit()
    except JobFailedError as error:
        assert "day=9/a.csv" in str(error)  # noqa: PT017 - object stores hold both names, and raise nothing
    finally:
        FAILPOINTS.observer = None
    assert job.phase() in TERMINAL
    if job.phase() is JobPhase.FAILED:
        assert world.visible() == {**OLD, in_the_way: b"in the way"}
    assert world.open_uploads() == []
    world.run("other", {"other.csv": b"other"})
    assert world.visible()["other.csv"] == b"other"


@pytest.mark.parametrize("mode", [soak_only("append"), "replace"])
def test_a_crash_at_a_sample_of_calls_leaves_all_or_nothing(
    open_at: Callable[[str], Store], world: World, mode: str
) -> None:
    outcomes = []
    for number in range(3, 250, rounds(67, 23)):
        at = World(world.root, open_at(f"crash-{number}").url)
        at.run("old", OLD)

        def run(at: World = at) -> None:
            with at.open_job("new", mode=mode) as job:
                write(job, "task-0", {"day=1/c.csv": NEW["day=1/c.csv"]})
                write(job, "task-1", {path: NEW[path] for path in ("day=3/d.csv", "e.csv")})
                job.commit()

        where = crash_at(number, run)
        assert all(result.ended in TERMINAL for result in at.recover()), where
        published = {**OLD, **NEW} if mode == "append" else NEW
        seen = at.visible()
        assert seen in (OLD, published), where
        assert at.live() == at.keys(), where
        assert at.open_uploads() == [], where
        outcomes.append(seen == published)
        if where is None:
            break
    assert outcomes == sorted(outcomes)
    assert {False, True} == set(outcomes)
    assert FAILPOINTS.observer is None


def test_a_sweep_reports_the_bytes_left_by_an_ended_job_and_aborts_only_what_its_filter_matches(
    world: World,
) -> None:
    job = world.attach("old-g1")
    for folder, size in (("day=1", 5), ("day=10", 7)):
        key = f"{folder}/late-{job.record.short_id}.csv"
        upload_id = world.store.begin_upload(key, job.record.token)
        world.store.put_part(key, upload_id, 1, 0, b"x" * size)

    def sweep(prefix: str = "", *, dry_run: bool) -> SweepReport:
        return sweep_uploads(
            world.url,
            wanted=UploadFilter(prefix=prefix),
            dry_run=dry_run,
            measure=set(SweepAction),
            settings=world.settings,
            clock=world.clock,
        )

    assert [swept.size for swept in sweep(dry_run=True).uploads] == [5, 7]
    assert sweep("day=1", dry_run=False).by_action[SweepAction.ABORT].size == 5
    assert [key.partition("/")[0] for key in world.open_uploads()] == ["day=10"]
    assert sweep(dry_run=False).total.size == 7
    assert world.open_uploads() == []
    assert world.visible() == OLD
