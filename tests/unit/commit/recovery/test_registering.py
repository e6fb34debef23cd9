"""The registry records the whole life of a job, decides nothing, and can be rebuilt from the store."""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from pathlib import Path

import pytest

from lockgate.storage_core.commit.leases.registration import PHASES
from lockgate.storage_core.commit.records.expected_tasks import ExpectedTask
from lockgate.storage_core.commit.records.job_record import JobOrigin
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.commit.records.phase import JobPhase as Phase
from lockgate.storage_core.commit.recovery.recover import recover_job
from lockgate.storage_core.commit.recovery.registry_rebuild import RescanResult, rescan
from lockgate.storage_core.commit.registry.queries import find_job
from lockgate.storage_core.commit.registry.rows import Job as RegisteredJob
from lockgate.storage_core.commit.registry.rows import TaskAttempt
from lockgate.storage_core.errors import (
    AccessDeniedError,
    InvalidInputError,
    JobFailedError,
    ObjectNotFoundError,
)
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.ids import JobId, TaskId, job_resource
from lockgate.storage_core.journal import Leases
from lockgate.storage_core.journal.entries.lease_entries import Lease
from lockgate.storage_core.journal.process_journal import close_journals
from tests.support.commit.destination import World, write
from tests.support.web.jobs import job_in


def registered(world: World, job_id: str) -> RegisteredJob:
    with world.journal.reading() as reading:
        return find_job(reading, job_id)


def entries(world: World) -> list[str]:
    with world.journal.reading() as reading:
        return [entry.op for entry in reading.entries(0, 1000)]


def leases(world: World) -> list[str]:
    with world.journal.reading() as reading:
        return [lease.resource for lease in reading.where(Lease, {})]


def rescanned(world: World, *, dry_run: bool = False) -> list[RescanResult]:
    return list(rescan(world.url, dry_run=dry_run, settings=world.settings, clock=world.clock))


def changes_of(results: list[RescanResult]) -> list[tuple[str, str, str | None, str | None]]:
    return [(result.job_id, result.action, result.was, result.now) for result in results]


def lose_journal(world: World) -> None:
    """Delete the journal's file; the next access creates a new one."""
    close_journals()
    for path in (world.root / "home").glob("journal.db*"):
        path.unlink()


def test_the_registry_maps_every_phase() -> None:
    assert set(PHASES) == set(Phase)


def test_the_registry_follows_a_job_from_its_set_up_to_its_end(journal_world: World) -> None:
    seen: list[str] = []

    def look(point: str) -> None:
        if point == "complete.complete.before":
            FAILPOINTS.observer = None
            seen.append(registered(journal_world, "sales").phase)

    with journal_world.open_job("sales") as job:
        opened = registered(journal_world, "sales-g1")
        assert (opened.phase, opened.destination, opened.job_attempt, opened.short_id) == (
            "open",
            journal_world.store.url,
            job.job_attempt,
            job.short_id,
        )
        assert leases(journal_world) == [job_resource(journal_world.store.url, job.job_id)]
        write(job, "t", {"a.csv": b"12", "b.csv": b"345"})
        journal_world.clock.sleep(5)
        FAILPOINTS.observer = look
        try:
            job.commit()
        finally:
            FAILPOINTS.observer = None

    ended = registered(journal_world, "sales")
    assert seen == ["committing"]
    assert (ended.phase, ended.job_attempt, ended.ended_s) == (
        "committed",
        job.job_attempt,
        journal_world.clock.now,
    )
    assert leases(journal_world) == []
    with journal_world.journal.reading() as reading:
        (task,) = reading.where(TaskAttempt, {})
    assert (task.task_id, task.job_attempt, task.files, task.rows, task.size_bytes) == (
        "t",
        job.job_attempt,
        2,
        None,
        5,
    )


def test_a_whole_job_takes_four_transactions_and_one_for_each_task(journal_world: World) -> None:
    calls: Counter[str] = Counter()

    def count(point: str) -> None:
        name = point.rpartition(".journal-")[2]
        if ".journal-" in point and name.endswith(".before"):
            calls[name.removesuffix(".before")] += 1

    assert journal_world.journal.status()
    FAILPOINTS.observer = count
    try:
        journal_world.run("sales", {"a.csv": b"1", "b.csv": b"2"})
    finally:
        FAILPOINTS.observer = None

    assert entries(journal_world) == [
        *("take-lease", "record-job"),
        *("record-task", "record-task"),
        "record-job",
        *("record-job", "free-lease", "drop-lease"),
    ]
    # Reads: whether the journal exists, who holds the lease, and whether an earlier driver left something.
    assert calls == {"write": 5, "read": 3}


def test_repeated_ends_of_a_job_are_registered_once(journal_world: World) -> None:
    job = journal_world.run("sales", {"a.csv": b"1"})
    before = entries(journal_world)

    journal_world.attach(job.job_id).finish()
    journal_world.elsewhere().attach(job.job_id).finish()

    assert entries(journal_world) == before


@pytest.mark.parametrize("end", ["abort", "revert"])
def test_a_job_that_publishes_nothing_is_registered_as_failed(journal_world: World, end: str) -> None:
    with journal_world.open_job("sales") as job:
        write(job, "t", {"a.csv": b"1"})
        if end == "abort":
            job.abort()
        else:
            upload = next(job.pending_sets()).files[0].upload
            hidden = Path(journal_world.url, "_lockgate/uploads", upload.key, f"~{upload.upload_id}")
            hidden.write_bytes(b"of somebody else")
            with pytest.raises(JobFailedError):
                job.commit()

    assert job.phase() is JobPhase.FAILED
    assert registered(journal_world, "sales").phase == "failed"
    assert leases(journal_world) == []


def test_an_aborted_job_whose_uploads_are_left_needs_a_person_until_they_are_gone(
    journal_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise AccessDeniedError("AbortMultipartUpload is not allowed; nothing was done")

    with journal_world.open_job("sales") as job:
        write(job, "task-0", {"a.txt": b"1"})
        with monkeypatch.context() as patched:
            patched.setattr(type(journal_world.store), "abort_upload", refused)
            assert job.abort("by hand") is JobPhase.FAILED
    assert registered(journal_world, job.job_id).attention == "uploads left"
    assert rescanned(journal_world) == []

    recover_job(journal_world.url, job.job_id, settings=journal_world.settings, clock=journal_world.clock)

    assert registered(journal_world, job.job_id).attention is None
    assert rescanned(journal_world) == []


def test_a_quarantined_job_that_was_aborted_needs_no_person_any_more(journal_world: World) -> None:
    job = job_in(journal_world, "quarantined")
    assert registered(journal_world, job.job_id).attention == "quarantined"

    journal_world.attach(job.job_id).abort("by hand")

    assert registered(journal_world, job.job_id).attention is None


def test_a_journal_failure_at_the_end_fails_no_job_and_a_rescan_repairs_the_registry(
    journal_world: World, caplog: pytest.LogCaptureFixture
) -> None:
    points = [f"register.journal-{verb}.{side}" for verb in ("write", "read") for side in ("before", "after")]
    with journal_world.open_job("sales") as job:
        write(job, "t", {"a.csv": b"1"})
        FAILPOINTS.arm(dict.fromkeys(points, "refuse"))
        try:
            with caplog.at_level(logging.WARNING):
                receipt = job.commit()
        finally:
            FAILPOINTS.arm({})

    assert receipt.files == 1
    assert f"run `lockgate jobs rescan {journal_world.store.url}` to update it" in caplog.text
    assert registered(journal_world, "sales").phase != "committed"

    results = rescanned(journal_world)
    assert [(result.action, result.now, result.detail) for result in results] == [("record", "committed", "")]
    assert registered(journal_world, "sales").phase == "committed"
    assert leases(journal_world) == []
    assert rescanned(journal_world) == []


def test_a_lost_journal_is_rebuilt_from_the_store(journal_world: World) -> None:
    journal_world.run("done", {"a.csv": b"1"})
    journal_world.open_job("dropped").abort()
    with journal_world.open_job("suspended") as suspended:
        write(suspended, "t", {"b.csv": b"2"})
    lose_journal(journal_world)
    wanted = [
        ("done-g1", "record", None, "committed"),
        ("dropped-g1", "record", None, "failed"),
        ("suspended-g1", "record", None, "open"),
    ]

    assert sorted(changes_of(rescanned(journal_world, dry_run=True))) == wanted
    assert entries(journal_world) == []
    assert sorted(changes_of(rescanned(journal_world))) == wanted

    assert registered(journal_world, "suspended").job_attempt == suspended.job_attempt
    before = entries(journal_world)
    assert rescanned(journal_world) == []
    assert entries(journal_world) == before


def test_rescan_forgets_a_job_whose_folder_is_gone(journal_world: World) -> None:
    journal_world.run("sales", {"a.csv": b"1"})
    journal_world.open_job("open").close()
    for job in ("sales-g1", "open-g1"):
        shutil.rmtree(Path(journal_world.url, "_lockgate/jobs", job))

    assert sorted(changes_of(rescanned(journal_world))) == [
        ("open-g1", "forget", "open", None),
        ("sales-g1", "forget", "committed", None),
    ]

    with journal_world.journal.reading() as reading, pytest.raises(ObjectNotFoundError):
        find_job(reading, "sales")
    assert leases(journal_world) == []


def test_rescan_drops_leases_of_jobs_that_are_over(journal_world: World) -> None:
    ended = journal_world.run("ended", {"a.csv": b"1"})
    gone = journal_world.open_job("gone")
    gone.close()
    shutil.rmtree(Path(journal_world.url, "_lockgate/jobs", gone.job_id))
    rescanned(journal_world)
    for job in (ended, gone):
        resource = job_resource(job.destination, job.job_id)
        Leases(journal_world.journal).take(resource, "died", purpose="recover", soft_s=1, hard_s=1)
    wanted = [
        ("ended-g1", "drop its lease", "committed", "committed"),
        ("gone-g1", "drop its lease", None, None),
    ]

    assert changes_of(rescanned(journal_world, dry_run=True)) == wanted
    assert len(leases(journal_world)) == 2
    assert changes_of(rescanned(journal_world)) == wanted
    assert leases(journal_world) == []
    assert rescanned(journal_world) == []


def test_rescan_reverts_an_end_that_the_store_does_not_have(journal_world: World) -> None:
    job = journal_world.run("sales", {"a.csv": b"1"})
    for name in ("COMMIT_STARTED", "COMMIT_SUCCESS"):
        Path(journal_world.url, "_lockgate/jobs", job.job_id, name).unlink()

    assert changes_of(rescanned(journal_world)) == [("sales-g1", "record", "committed", "open")]
    assert registered(journal_world, "sales").phase == "open"


def test_rescan_trusts_the_store_when_a_slow_clock_set_up_the_job_again(
    journal_world: World,
) -> None:
    journal_world.run("sales", {"a.csv": b"1"})
    shutil.rmtree(journal_world.url)
    journal_world.clock.sleep(-60)
    journal_world.open_job("sales").close()
    assert registered(journal_world, "sales").phase == "committed", "it looks like a message that comes late"

    assert changes_of(rescanned(journal_world)) == [("sales-g1", "record", "committed", "open")]
    assert registered(journal_world, "sales").phase == "open"
    assert rescanned(journal_world) == []


def test_rescan_reports_an_unreadable_job_and_continues(journal_world: World) -> None:
    journal_world.run("good", {"a.csv": b"1"})
    journal_world.open_job("bad").close()
    lose_journal(journal_world)
    Path(journal_world.url, "_lockgate/jobs/bad-g1/job.json").write_text("{half a rec")

    results = {result.job_id: result for result in rescanned(journal_world)}

    assert results[JobId("bad-g1")].action == "leave alone"
    assert "job.json" in results[JobId("bad-g1")].detail
    assert registered(journal_world, "good").phase == "committed"


def test_rescan_requires_a_journal(world: World) -> None:
    with pytest.raises(InvalidInputError, match="no journal"):
        rescanned(world)


def facts(job: RegisteredJob) -> tuple[object, ...]:
    return (
        (job.dag_id, job.run_id, job.task_id, job.map_index),
        (job.tasks, job.files, job.rows, job.size_bytes),
        (job.decided_s, job.ended_s),
    )


def test_the_registry_has_what_lists_show_and_a_rebuild_finds_all_but_the_tasks(journal_world: World) -> None:
    origin = JobOrigin(dag_id="dag", run_id="run", task_id="write", map_index=3)
    with journal_world.open_job("sales", origin=origin) as job:
        opened = registered(journal_world, job.job_id)
        write(job, "t", {"a.csv": b"12", "b.csv": b"345"})
        job.expect([ExpectedTask(task_id=TaskId("t"))])
        journal_world.clock.now += 7
        job.commit()
    kept = facts(registered(journal_world, "sales"))
    assert facts(opened) == (("dag", "run", "write", 3), (None,) * 4, (None, None))
    assert kept[:2] == (("dag", "run", "write", 3), (1, 2, None, 5))
    assert kept[2] == (journal_world.clock.now, journal_world.clock.now)
    lose_journal(journal_world)
    assert changes_of(rescanned(journal_world)) == [("sales-g1", "record", None, "committed")]
    assert facts(registered(journal_world, "sales")) == (kept[0], (None, *kept[1][1:]), kept[2])
    assert rescanned(journal_world) == []
