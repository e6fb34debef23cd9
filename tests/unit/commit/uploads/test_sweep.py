"""Uploads that a sweep may abort, for every filter, and the costs that it reports."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lockgate.storage_core.commit.job import Job
from lockgate.storage_core.commit.records.job_listing import list_job_folders
from lockgate.storage_core.commit.recovery.recover import recover_job
from lockgate.storage_core.commit.recovery.upload_sweep import SweepReport, find_uploads, sweep_uploads
from lockgate.storage_core.commit.uploads.upload_cost import measure_uploads
from lockgate.storage_core.commit.uploads.upload_owner import SweepAction, UploadFilter, count_uploads
from lockgate.storage_core.errors import InvalidInputError, JobFailedError, UploadGoneError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.ids import JobId, new_token
from lockgate.storage_core.stores.instrumented import InstrumentedStore
from lockgate.storage_core.stores.local.store import LocalStore
from tests.support.commit.destination import Crash, World, write
from tests.support.fake_s3 import faults
from tests.support.s3.destination import s3_world

DAY = 86_400.0


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    """Reset the failpoints after the test."""
    yield
    FAILPOINTS.observer = None
    FAILPOINTS.arm({})


def sweep(world: World, *, dry_run: bool = False, **wanted: Any) -> SweepReport:
    return sweep_uploads(
        world.url,
        wanted=UploadFilter(**wanted),
        dry_run=dry_run,
        settings=world.settings,
        clock=world.clock,
    )


def actions(report: SweepReport) -> dict[str, SweepAction]:
    return {swept.key: swept.action for swept in report.uploads}


def stray(world: World, key: str, data: bytes = b"") -> None:
    upload_id = world.store.begin_upload(key, new_token())
    world.store.put_part(key, upload_id, 1, 0, data)


def jobs_in_every_undecided_state(world: World) -> dict[str, Job]:
    """Return an upload of a live, a suspended and a lapsed job, and of one with an unreadable lease."""
    jobs = {name: world.open_job(name) for name in ("live", "suspended", "lapsed", "unknown")}
    for name, job in jobs.items():
        write(job, "t", {f"{name}.csv": b"1"})
    jobs["suspended"].suspend(timeout_s=1000)
    jobs["lapsed"].suspend(timeout_s=0)
    jobs["unknown"].close()
    world.store.delete("_lockgate/jobs/unknown-g1/lease.json")
    return jobs


# Filters set by an operator.


@pytest.mark.parametrize("name", ["live", "suspended", "lapsed", "unknown"])
def test_an_upload_of_an_undecided_job_is_never_aborted_even_if_the_sweep_names_its_owner(
    world: World, name: str
) -> None:
    jobs = jobs_in_every_undecided_state(world)
    (swept,) = sweep(world, owner=JobId(f"{name}-g1")).uploads
    assert swept.action is SweepAction.KEEP
    assert f"{world.url} {name}-g1`" in swept.remedy
    assert len(world.open_uploads()) == 4
    jobs["live"].abort()


def test_an_upload_of_a_decided_job_is_never_aborted_and_recovery_is_named(world: World) -> None:
    job = world.open_job("sales")
    write(job, "t", {"a.csv": b"1"})

    def die(name: str) -> None:
        if name == "complete.complete.before":
            raise Crash(name)

    FAILPOINTS.observer = die
    with pytest.raises(Crash):
        job.commit()
    FAILPOINTS.observer = None
    (swept,) = sweep(world, owner=job.job_id).uploads
    assert (swept.action, "is decided" in swept.reason) == (SweepAction.KEEP, True)
    assert "lockgate jobs recover" in swept.remedy
    recover_job(world.url, job.job_id, settings=world.settings, clock=world.clock)
    assert world.visible() == {"a.csv": b"1"}


def test_a_prefix_is_a_folder_and_does_not_match_longer_names(world: World) -> None:
    job = world.run("ended", {"old.csv": b"0"})
    for folder in ("dataset1", "dataset1/day=1", "dataset10"):
        stray(world, f"{folder}/a-{job.short_id}.csv")
    for prefix in ("dataset1", "dataset1/"):
        report = sweep(world, dry_run=True, prefix=prefix)
        assert {swept.key.rpartition("/")[0] for swept in report.uploads} == {"dataset1", "dataset1/day=1"}
    sweep(world, prefix="dataset1")
    assert world.open_uploads() == [f"dataset10/a-{job.short_id}.csv"]


@pytest.mark.parametrize("prefix", ["../other", "/abs", "a//b", "a/./b"])
def test_a_prefix_that_leaves_the_destination_is_refused(world: World, prefix: str) -> None:
    with pytest.raises(InvalidInputError, match="key"):
        sweep(world, prefix=prefix)


def test_age_and_owner_limit_the_sweep(world: World) -> None:
    import time

    job = world.run("ended", {"old.csv": b"0"})
    world.clock.now = time.time()
    stray(world, f"a-{job.short_id}.csv")
    stray(world, "whose.bin")
    assert actions(sweep(world, owner="none")) == {"whose.bin": SweepAction.STAGE}
    assert list(actions(sweep(world, dry_run=True, owner=job.job_id))) == [f"a-{job.short_id}.csv"]
    assert actions(sweep(world, older_than_s=3600)) == {}
    world.clock.now += 3601
    assert len(actions(sweep(world, dry_run=True, older_than_s=3600))) == 2
    assert sweep(world, owner=JobId("other-g1")).uploads == ()
    assert len(world.open_uploads()) == 2
    assert actions(sweep(world, older_than_s=3600, owner=job.job_id)) == {
        f"a-{job.short_id}.csv": SweepAction.ABORT
    }
    assert world.open_uploads() == ["whose.bin"]


def test_an_ownerless_upload_needs_two_sweeps_far_apart_with_every_filter(world: World) -> None:
    stray(world, "day=1/whose.bin")
    for wanted in ({"prefix": "day=1"}, {"owner": "none"}, {"older_than_s": 0.0}):
        for _ in range(2):
            assert actions(sweep(world, **wanted)) == {"day=1/whose.bin": SweepAction.STAGE}
    world.clock.now += DAY
    assert actions(sweep(world, prefix="day=1")) == {"day=1/whose.bin": SweepAction.ABORT}
    assert world.open_uploads() == []


def test_a_filtered_sweep_keeps_the_memory_of_a_full_one(world: World) -> None:
    stray(world, "day=1/a.bin")
    stray(world, "day=2/b.bin")
    sweep(world)
    world.clock.now += DAY
    sweep(world, prefix="day=1", owner=JobId("sales-g1"))
    assert actions(sweep(world, prefix="day=1")) == {"day=1/a.bin": SweepAction.ABORT}
    assert actions(sweep(world)) == {"day=2/b.bin": SweepAction.ABORT}


def test_a_filtered_sweep_does_not_touch_job_folders(world: World) -> None:
    world.open_job("sales").abort()
    world.clock.now += 31 * DAY
    assert sweep(world, prefix="day=1").jobs == ()
    assert [swept.job_id for swept in sweep(world).jobs] == ["sales-g1"]


def test_open_uploads_are_counted_as_they_are_listed(world: World) -> None:
    job = world.open_job("sales")
    write(job, "t", {"day=1/a.csv": b"1", "day=2/b.csv": b"2"})
    stray(world, "day=2/whose.bin")

    def count(**wanted: Any) -> int:
        return count_uploads(world.url, UploadFilter(**wanted), settings=world.settings, clock=world.clock)

    assert (count(), count(prefix="day=2"), count(owner="none"), count(owner=job.job_id)) == (3, 2, 1, 2)
    assert count(prefix="day=2", owner=job.job_id) == 1
    job.abort()
    assert count() == 1


# Concurrent sweeps.


def test_two_concurrent_sweeps_abort_everything_once_and_neither_fails(world: World) -> None:
    world.keep()
    job = world.run("ended", {"old.csv": b"0"})
    world.run("later", {"new.csv": b"1"}, mode="replace")
    for number in range(20):
        stray(world, f"{number}-{job.short_id}.csv")
    stray(world, "whose.bin")
    sweep(world, owner="none")
    world.clock.now += 2 * DAY
    reports: list[SweepReport] = []

    def other() -> None:
        reports.append(sweep(world))

    def rival(name: str) -> None:
        if name in {"sweep.abort.before", "sweep.get.after"} and len(rivals) < 2 and name not in rivals:
            rivals[name] = thread = threading.Thread(target=other)
            thread.start()
            thread.join()

    rivals: dict[str, threading.Thread] = {}
    FAILPOINTS.observer = rival
    reports.append(sweep(world))
    FAILPOINTS.observer = None

    assert len(reports) == 3
    assert world.open_uploads() == []
    assert world.visible() == {"new.csv": b"1"}
    assert world.live() == world.keys()
    assert sweep(world).uploads == ()
    assert sweep(world).jobs == ()


# Reported costs.


def test_a_report_sums_bytes_and_monthly_cost_by_action(world: World) -> None:
    job = world.run("ended", {"old.csv": b"0"})
    stray(world, f"a-{job.short_id}.csv", b"x" * 3000)
    stray(world, "whose.bin", b"x" * 1000)
    report = sweep(world, dry_run=True)
    assert (report.total.uploads, report.total.size, report.total.unmeasured) == (2, 4000, 0)
    assert report.total.monthly_cost_usd == pytest.approx(4000 / 2**30 * 0.023)
    assert {action: figures.size for action, figures in report.by_action.items()} == {
        SweepAction.STAGE: 1000,
        SweepAction.ABORT: 3000,
    }


def test_uploads_listed_without_sizes_are_measured_in_parallel_and_keep_their_order(
    world: World,
) -> None:
    from msgspec.structs import replace

    for number in range(20):
        stray(world, f"{number:02}.bin", b"x" * number)
    silent = [replace(swept, size=None) for swept in sweep(world, dry_run=True).uploads]
    world.store.abort_upload("07.bin", silent[7].upload_id)
    reported: list[tuple[str, int, int]] = []

    store = world.store
    found = list(
        measure_uploads(
            store,
            silent,
            {SweepAction.STAGE},
            settings=world.settings,
            progress=lambda *numbers: reported.append(numbers),
        )
    )

    assert [swept.key for swept in found] == [swept.key for swept in silent]
    assert [swept.size for swept in found] == [None if n == 7 else n for n in range(20)]
    assert reported[-1] == ("measure uploads", 20, 20)
    kept = measure_uploads(
        store, silent, {SweepAction.KEEP}, settings=world.settings, progress=lambda *_: pytest.fail("asked")
    )
    assert list(kept) == silent
    with pytest.raises(UploadGoneError):
        store.upload_bytes("07.bin", silent[7].upload_id)


def test_a_sweep_remembers_a_bounded_number_of_uploads_and_aborts_the_rest_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockgate.storage_core.commit.recovery.upload_sweep.MAX_STAGED", 2)
    for number in range(3):
        stray(world, f"{number}.bin")
    left = []
    for _ in range(3):
        sweep(world)
        left.append(len(world.open_uploads()))
        world.clock.now += DAY
    assert left == [3, 1, 0]


# Work that ended jobs left for later.


def test_one_unreadable_marker_does_not_stop_the_sweep_of_the_other_jobs(world: World) -> None:
    world.run("broken", {"a.csv": b"1"})
    world.run("old", {"b.csv": b"1"})
    world.run("new", {"c.csv": b"2"})
    world.store.put("_lockgate/jobs/new-g1/lease.json", b"left by a clean-up that died")
    world.store.put("_lockgate/jobs/broken-g1/lease.json", b"garbage")
    world.store.put("_lockgate/jobs/broken-g1/COMMIT_SUCCESS", b"garbage")
    world.clock.sleep(1_000)
    swept = {each.job_id: each.action for each in sweep(world).jobs}
    assert swept[JobId("new-g1")] == "finish the clean-up of an ended job"


def test_an_orphan_is_aborted_even_if_a_job_with_unique_names_is_always_running(world: World) -> None:
    world.run("first", {"a.csv": b"1"})
    stray(world, "orphan.csv")
    for number in range(3):
        with world.open_job(f"batch-{number}") as job:
            write(job, "t", {"b.csv": b"1"})
            sweep(world)
            job.commit()
        world.clock.sleep(DAY + 1)
    assert world.open_uploads() == []


def test_the_second_check_after_a_revert_keeps_files_of_a_later_generation(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = tmp_path / "source.csv"
    source.write_bytes(b"rows")
    options = {"committer": "file-v1", "unique_filenames": False}

    def add(job: Job) -> None:
        with job.attempt("t") as attempt:
            attempt.add_file(source, "a.csv")
            with attempt.open("b.csv") as file:
                file.write(b"x")

    job = world.open_job("sales", **options)
    add(job)
    (lost,) = (info for page in world.store.upload_pages("b.csv") for info in page)
    with monkeypatch.context() as patch:
        patch.setattr(
            "lockgate.storage_core.commit.requests_ahead.check_uploads",
            lambda *_: world.store.abort_upload(lost.key, lost.upload_id),
        )
        with pytest.raises(JobFailedError, match="reverted"):
            job.commit()
    with world.open_job("sales", **options) as again:
        add(again)
        again.commit()
    world.clock.sleep(7200)
    actions = {swept.job_id: swept.action for swept in sweep(world).jobs}
    assert actions[JobId("sales-g1")] == "revert files of a reverted job that were completed late"
    assert set(world.live()) == set(world.keys()) == {"a.csv", "b.csv"}


def test_files_that_a_killed_attempt_wrote_after_its_jobs_end_are_deleted(world: World) -> None:
    job = world.open_job("sales", committer="file-v1")
    late = job.attempt("t")
    write(job, "t", {"a.csv": b"1"})
    job.commit()
    with late.open("z.csv") as file:
        file.write(b"late")
    assert (Path(world.url) / "_temporary").exists()
    assert [swept.action for swept in sweep(world).jobs] == [
        "delete what a killed attempt wrote after the job's end"
    ]
    assert not (Path(world.url) / "_temporary").exists()
    assert world.visible() == {"a.csv": b"1"}


def test_orphans_are_aborted_even_if_their_size_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_world(tmp_path, monkeypatch) as s3:
        world = s3.driver
        short = world.run("sales", {"a.csv": b"1"}).short_id
        world.store.begin_upload(f"z-{short}.csv", new_token())
        s3.fake.faults.at(faults.Fault("403", status=403, code="AccessDenied"), operation="ListParts", nth=1)
        report = sweep_uploads(
            world.url,
            dry_run=False,
            measure=(SweepAction.ABORT,),
            settings=world.settings,
            clock=world.clock,
        )
        assert (report.total.uploads, report.total.unmeasured) == (1, 1)
        assert world.open_uploads() == []


def test_finished_jobs_add_no_requests_to_recovery_and_sweep(world: World) -> None:
    def calls(what: Callable[[], object]) -> int:
        seen: list[str] = []
        FAILPOINTS.observer = lambda name: seen.append(name) if name.endswith(".before") else None
        what()
        FAILPOINTS.observer = None
        return len(seen)

    world.clock.now = time.time()  # no folder is old
    counts = []
    for first in (0, 5):
        for number in range(first, first + 5):
            world.run(f"batch-{number}", {f"{number}.csv": b"1"})
        counts.append((calls(world.recover), calls(lambda: sweep(world))))
    assert counts[0] == counts[1]


def test_a_job_listing_of_many_pages_names_every_job_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        world.run(f"done-{number}", {f"{number}.csv": b"1"})
    jobs_in_every_undecided_state(world)
    whole = list_job_folders(world.store)
    assert sorted(whole.done) == [JobId(f"done-{number}-g1") for number in range(4)]
    assert sorted(whole.others) == ["lapsed-g1", "live-g1", "suspended-g1", "unknown-g1"]
    for page_size in (1, 2, 3, 7):
        paged = partial(LocalStore.pages, page_size=page_size)
        monkeypatch.setattr(InstrumentedStore, "pages", lambda self, *a, p=paged, **k: p(self.inner, *a, **k))
        assert list_job_folders(world.store) == whole


# Uploads of other tools: only by name while they may be at work.


def test_uploads_below_a_live_s3a_job_are_kept_whatever_their_age(world: World) -> None:
    stray(world, "day=1/part-0.parquet")
    stray(world, "other/part-0.parquet")
    world.store.put("day=1/__magic_job-0f3c/job-0f3c/tasks/attempt/__base/part-0.parquet.pending", b"{}")
    sweep(world)
    world.clock.now += 30 * DAY
    report = sweep(world)
    assert actions(report) == {
        "day=1/part-0.parquet": SweepAction.KEEP,
        "other/part-0.parquet": SweepAction.ABORT,
    }
    kept = next(swept for swept in report.uploads if swept.action is SweepAction.KEEP)
    assert "day=1/__magic_job-0f3c/" in kept.reason
    assert kept.remedy.endswith(f"`lockgate uploads abort {world.store.url} --owner none --yes`")
    assert world.open_uploads() == ["day=1/part-0.parquet"]
    assert actions(sweep(world, owner="none")) == {"day=1/part-0.parquet": SweepAction.ABORT}
    assert world.open_uploads() == []


def test_uploads_without_an_owner_are_kept_for_as_long_as_new_ones_appear(world: World) -> None:
    stray(world, "old.bin")
    sweep(world)
    world.clock.now += 3 * DAY
    stray(world, "new.bin")
    foreseen = sweep(world, dry_run=True)
    report = sweep(world)
    assert actions(foreseen) == actions(report) == {"old.bin": SweepAction.KEEP, "new.bin": SweepAction.STAGE}
    assert "another tool may be at work" in next(f.reason for f in report.uploads if f.key == "old.bin")
    assert report.by_action[SweepAction.KEEP].uploads == 1
    assert {
        swept.key: swept.action
        for swept in find_uploads(world.url, 9, settings=world.settings, clock=world.clock).uploads
    } == actions(report)
    assert actions(sweep(world, owner="none")) == {"old.bin": SweepAction.ABORT, "new.bin": SweepAction.STAGE}
    world.clock.now += DAY
    assert actions(sweep(world)) == {"new.bin": SweepAction.ABORT}
    assert world.open_uploads() == []
