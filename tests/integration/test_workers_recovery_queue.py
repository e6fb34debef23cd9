"""Tests of the queue `recovery` with real workers and Redis: concurrent jobs, and a killed worker."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lockgate import open_job
from lockgate.storage_core.commit.job import Job
from lockgate.storage_core.commit.job_summary import list_jobs
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.commit.recovery.recover import JobAt, RecoveryResult
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores import open_store
from lockgate.workers.dispatch import recover_by_workers
from tests.support.commit.destination import write
from tests.support.workers.celery_worker import embedded_broker, worker_process

pytestmark = [pytest.mark.soak, pytest.mark.fault, pytest.mark.integration]

PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Return settings of a shared journal and broker; messages of a dead worker are soon redelivered."""
    with embedded_broker(tmp_path_factory.mktemp("home"), LOCKGATE_REDELIVERY_S="3") as settings:
        yield settings


def lapsed(lake: Path, settings: Settings, name: str) -> Job:
    job = open_job(str(lake), name, settings=settings)
    write(job, "t", {"a.txt": b"1", "b.txt": b"2"})
    job.suspend(0)
    return job


def at(job: Job) -> JobAt:
    return JobAt(job.destination, job.job_id)


def open_uploads(lake: Path) -> list[str]:
    return [upload.key for page in open_store(str(lake)).upload_pages() for upload in page]


def settled(jobs: list[JobAt], settings: Settings) -> list[RecoveryResult]:
    return list(recover_by_workers(jobs, settings=settings, timeout_s=PATIENCE_S))


def test_workers_settle_many_jobs_of_several_destinations(tmp_path: Path, settings: Settings) -> None:
    jobs = [lapsed(tmp_path / f"lake-{n % 2}", settings, f"job-{n}") for n in range(8)]

    with worker_process(tmp_path / "log", queues=["recovery"]):
        results = settled([at(job) for job in jobs], settings)

    assert sorted((r.destination, r.job_id, r.ended) for r in results) == sorted(
        (job.destination, job.job_id, JobPhase.FAILED) for job in jobs
    )
    assert open_uploads(tmp_path / "lake-0") == open_uploads(tmp_path / "lake-1") == []


def test_the_job_of_a_killed_worker_is_settled_by_the_next_worker(tmp_path: Path, settings: Settings) -> None:
    lake = tmp_path / "lake"
    job = lapsed(lake, settings, "sales")
    deadly = {
        "LOCKGATE_FAILPOINTS": "abort-uploads.abort.after=kill",
        "LOCKGATE_PARALLELISM": "1",
        "LOCKGATE_LEASE_HARD_S": "6",  # it may survive only if the machine stalls for this long
        "LOCKGATE_COMMIT_WINDOW_S": "1",
        "LOCKGATE_LEASE_RENEW_S": "0.5",
    }

    with (
        ThreadPoolExecutor(1) as recovery,
        worker_process(tmp_path / "log-1", queues=["recovery"], pool="solo", environment=deadly) as first,
    ):
        settling = recovery.submit(settled, [at(job)], settings)
        assert first.process.wait(60) == -signal.SIGKILL
        assert job.phase() is JobPhase.ABORTING
        with worker_process(tmp_path / "log-2", name="second", queues=["recovery"]):
            (result,) = settling.result()
            deadline = time.monotonic() + PATIENCE_S
            while result.ended is not JobPhase.FAILED:  # the dead worker's lease has to expire first
                assert time.monotonic() < deadline, result
                (result,) = settled([at(job)], settings)

    assert [found.phase for found in list_jobs(str(lake), settings=settings)] == [JobPhase.FAILED]
    assert open_uploads(lake) == []
