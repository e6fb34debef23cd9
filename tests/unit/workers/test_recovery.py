"""Tests of recovery over the `recovery` queue, with one worker thread and without workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockgate import open_job
from lockgate.storage_core.commit.job import Job
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.commit.recovery.decision_table import RecoveryAction
from lockgate.storage_core.commit.recovery.recover import JobAt, RecoveryResult
from lockgate.storage_core.errors import JournalUnavailableError
from lockgate.storage_core.ids import JobId
from lockgate.storage_core.settings import Settings, load_settings
from lockgate.workers import gather
from lockgate.workers.dispatch import recover_by_workers
from tests.support.workers.celery_worker import memory_broker, worker_thread


@pytest.fixture
def settings() -> Iterator[Settings]:
    with memory_broker():
        yield load_settings()


def lapsed(tmp_path: Path, settings: Settings, name: str = "sales") -> Job:
    job = open_job(str(tmp_path / "lake"), name, settings=settings)
    job.suspend(0)
    return job


def at(job: Job, job_id: str | None = None) -> JobAt:
    return JobAt(job.destination, JobId(job_id or job.job_id))


def by_id(results: Iterator[RecoveryResult]) -> dict[str, RecoveryResult]:
    return {result.job_id: result for result in results}


def test_each_job_is_recovered_independently_of_the_others(tmp_path: Path, settings: Settings) -> None:
    job, suspended = (
        lapsed(tmp_path, settings),
        open_job(str(tmp_path / "lake"), "suspended", settings=settings),
    )
    suspended.suspend()
    reported: list[tuple[str, int, int]] = []

    with worker_thread():
        jobs = [at(job, "unheard-of-g1"), at(job), at(suspended)]
        found = by_id(
            recover_by_workers(jobs, settings=settings, progress=lambda *s: reported.append(s), timeout_s=60)
        )

    assert (found["unheard-of-g1"].ended, found["unheard-of-g1"].needs_an_operator) == (None, True)
    assert "no job unheard-of-g1" in found["unheard-of-g1"].detail
    assert (found["sales-g1"].action, found["sales-g1"].ended) == (RecoveryAction.ABORT, JobPhase.FAILED)
    assert found["suspended-g1"].action is RecoveryAction.LEAVE
    assert job.phase() is JobPhase.FAILED
    assert reported == [("recovery", done, 3) for done in (1, 2, 3)]


def test_without_a_worker_this_process_recovers_the_jobs(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "PING_S", 0.1)
    job = lapsed(tmp_path, settings)

    (found,) = recover_by_workers([at(job)], settings=settings, grace_s=0.2)

    assert (found.action, found.ended) == (RecoveryAction.ABORT, JobPhase.FAILED)


def test_a_job_with_a_transient_failure_needs_no_operator(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object, **__: object) -> None:
        raise JournalUnavailableError("journal: gone; nothing was applied; try again later")

    job = lapsed(tmp_path, settings)
    monkeypatch.setattr("lockgate.workers.tasks.recover", gone)

    with worker_thread():
        (found,) = recover_by_workers([at(job)], settings=settings, timeout_s=60)

    assert (found.ended, found.needs_an_operator) == (None, False)
    assert found.detail.startswith("JournalUnavailableError: journal: gone")
