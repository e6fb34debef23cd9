"""The owner of an open upload: similar names, plain names, and nested destinations."""

from __future__ import annotations

import pytest

from lockgate.storage_core.commit.records.expected_tasks import ExpectedTask
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.commit.recovery.recover import recover_job
from lockgate.storage_core.commit.recovery.upload_sweep import SweepAction, sweep_uploads
from lockgate.storage_core.errors import (
    InvalidInputError,
    LockgateError,
    MalformedRecordError,
)
from lockgate.storage_core.ids import TaskId, new_token
from tests.support.commit.destination import World, write

DAY = 86_400.0
NEW = {"a.csv": b"1", "b.csv": b"2"}


def sweep(world: World) -> dict[str, SweepAction]:
    report = sweep_uploads(world.url, dry_run=False, settings=world.settings, clock=world.clock)
    return {swept.key: swept.action for swept in report.uploads}


def test_an_upload_named_like_an_ended_jobs_is_not_attributed_to_it(world: World) -> None:
    ended = world.run("ended", {"old.csv": b"0"})
    job = world.open_job("sales")
    write(job, "t", {f"v2.part-{ended.short_id}": b"1"})
    assert set(sweep(world).values()) == {SweepAction.KEEP}
    world.attach(ended.job_id).commit()
    assert len(world.open_uploads()) == 1
    job.commit()
    assert len(world.visible()) == 2


def test_a_plain_name_that_ends_in_another_jobs_short_id_is_refused(world: World) -> None:
    ended = world.run("ended", {"old.csv": b"0"})
    with world.open_job("sales", unique_filenames=False) as job, job.attempt("t") as attempt:
        with pytest.raises(InvalidInputError, match=f"short id of job {ended.job_id}"):
            attempt.open(f"a-{ended.short_id}.csv")
        attempt.open("a-aaaaaaaaaa.csv").close()


def test_uploads_of_a_lapsed_job_with_plain_names_wait_for_its_decision(world: World) -> None:
    job = world.open_job("sales", unique_filenames=False, on_lapse="resume")
    job.expect([ExpectedTask(task_id=TaskId("t"))])
    write(job, "t", NEW)
    job.close()
    for _ in range(3):
        world.clock.now += 2 * DAY
        sweep(world)
    found = recover_job(world.url, job.job_id, settings=world.settings, clock=world.clock)
    assert found.ended is JobPhase.COMMITTED
    assert world.visible() == NEW


def test_a_job_with_plain_names_ends_despite_an_unreadable_pending_set(world: World) -> None:
    job = world.open_job("sales", unique_filenames=False)
    write(job, "t", NEW)
    key = job._folder.pending_set_key(TaskId("t"), next(job.pending_sets()).attempt_id)
    world.store.put(key, b"{")
    with pytest.raises(MalformedRecordError):
        job.commit()
    assert job.phase() is JobPhase.FAILED
    assert set(sweep(world).values()) == {SweepAction.STAGE}
    world.clock.now += 2 * DAY
    sweep(world)
    assert world.open_uploads() == []


def test_an_upload_of_a_nested_destination_is_left_to_its_own_sweep(world: World) -> None:
    below = World(world.root, f"{world.url}/below", world.clock)
    job = below.open_job("theirs")
    write(job, "t", NEW)
    world.store.begin_upload("below/whose.bin", new_token())
    for _ in range(3):
        assert set(sweep(world).values()) <= {SweepAction.KEEP}
        world.clock.now += 2 * DAY
    with pytest.raises(LockgateError):
        world.attach("theirs-g1")
    job.close()
