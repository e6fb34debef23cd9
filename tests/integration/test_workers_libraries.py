"""Real workers import the libraries of a job, and delete their cache when they stop."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockgate.storage_core.blobs.blob_protocol import Artefacts
from lockgate.storage_core.blobs.open_blobs import open_blobs
from lockgate.storage_core.settings import Settings
from lockgate.workers.libraries import library_headers
from tests.support.blobs.libraries import upload, wheel
from tests.support.workers import library_tasks
from tests.support.workers.celery_worker import embedded_broker, wait_until, worker_process

pytestmark = [pytest.mark.soak, pytest.mark.integration]

MODULE = "celery_rates"
APPLICATION = "tests.support.workers.library_tasks"


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    with embedded_broker(tmp_path / "home") as settings:
        yield settings


def uploaded(settings: Settings, job_id: str, rate: int) -> Artefacts:
    with open_blobs(settings) as server:
        return upload(server, job_id, {f"{MODULE}-{rate}-py3-none-any.whl": wheel(MODULE, f"RATE = {rate}")})


def rates(folder: Path, *jobs: Artefacts) -> list[str]:
    """Send a task of each job concurrently; return the imported values in the order of the jobs."""
    answers = [folder / str(number) for number, _ in enumerate(jobs)]
    folder.mkdir()
    for answer, job in zip(answers, jobs, strict=True):
        library_tasks.rate.apply_async([MODULE, str(answer)], headers=library_headers(job), queue="commit")
    return read(answers)


def read(answers: list[Path]) -> list[str]:
    """Wait for the results."""
    wait_until(lambda: all(answer.exists() for answer in answers), within_s=120)
    return [answer.read_text() for answer in answers]


def lose(settings: Settings, job: Artefacts) -> None:
    """Delete a job's blobs at the server, so that only caches have them."""
    with open_blobs(settings) as server:
        for blob in job.blobs:
            server.stores.local.delete(job.job_id, blob.blob_key)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_tasks_of_two_jobs_import_their_own_versions_and_leave_nothing(
    tmp_path: Path, settings: Settings, pool: str
) -> None:
    old, new = uploaded(settings, "old", 1), uploaded(settings, "new", 2)
    with worker_process(tmp_path / "log", pool=pool, application=APPLICATION):
        assert rates(tmp_path / "both", *[old, new] * 4) == ["1", "2"] * 4
        answers = [tmp_path / f"seen-{number}" for number in range(4)]
        for answer in answers:
            library_tasks.seen.apply_async([MODULE, str(answer)], queue="commit")
        assert read(answers) == ["False"] * 4
        lose(settings, old)
        assert rates(tmp_path / "again", *[old] * 4) == ["1"] * 4
    assert not (settings.home_dir / "blob-cache").exists()


def test_a_killed_worker_leaves_its_cache_to_the_next_one(tmp_path: Path, settings: Settings) -> None:
    job = uploaded(settings, "sales", 7)
    cached = settings.home_dir / "blob-cache" / "blobs" / "sales" / job.blobs[0].blob_key
    with worker_process(tmp_path / "first", application=APPLICATION) as worker:
        assert rates(tmp_path / "before", *[job] * 4) == ["7"] * 4
        os.killpg(worker.pid, signal.SIGKILL)
        wait_until(lambda: worker.process.poll() is not None)
    assert cached.exists()
    lose(settings, job)
    with worker_process(tmp_path / "second", application=APPLICATION):
        assert rates(tmp_path / "after", *[job] * 4) == ["7"] * 4
    assert not cached.exists()
