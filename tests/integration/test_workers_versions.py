"""During an upgrade, workers of two versions share the queues of one broker: together they finish a job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from celery.canvas import Signature

from lockgate.storage_core.commit.decide import additions
from lockgate.storage_core.errors import MissingPartError
from lockgate.workers import tasks
from lockgate.workers.celery_app import app
from lockgate.workers.dispatch import commit_tasks, complete_by_workers
from tests.support.workers.celery_worker import StagedJob, WorkerProcess, embedded_broker, worker_process

pytestmark = [pytest.mark.soak, pytest.mark.integration, pytest.mark.fault]

TASK, SHARD = "Task lockgate.commit_task", "Task lockgate.complete_shard"


@contextmanager
def worker_of(version: str, root: Path) -> Iterator[WorkerProcess]:
    """Run a worker of this tree, or of a simulated version."""
    application = "lockgate.workers" if version == "this" else f"tests.support.workers.{version}"
    with worker_process(root / f"{version}.log", name=version, application=application) as worker:
        yield worker


@pytest.fixture(autouse=True)
def many_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the driver write plans of a file a shard, so that several workers complete a job."""
    monkeypatch.setattr(additions, "SHARD_ENTRIES", 1)


def finish(staged: StagedJob) -> list[dict[str, Any]]:
    """Commit a job on the workers, check that every row is visible once, and return the tasks' rows."""
    rows = commit_tasks(*staged.ids, staged.task_ids, timeout_s=300)
    assert [row["task_id"] for row in rows] == staged.task_ids
    receipt = staged.attach().commit(complete=complete_by_workers)
    assert (receipt.files, receipt.rows) == (staged.files, len(staged.all_rows))
    assert staged.visible_rows() == staged.all_rows
    assert staged.open_uploads() == []
    return rows


def done(worker: WorkerProcess) -> Mapping[str, int]:
    """Return how many tasks of each kind a worker has done."""
    lines = [line for line in worker.log.read_text().splitlines() if " succeeded in " in line]
    return {kind: sum(kind in line for line in lines) for kind in (TASK, SHARD)}


def waiting_messages() -> int:
    with app.connection_for_read() as connection:
        return int(connection.default_channel.client.llen("commit"))


def with_checksum(*arguments: str) -> Signature:
    """Return the message of a later release: `lockgate.commit_task` with an argument more."""
    return app.signature("lockgate.commit_task", arguments, {"checksum": "c"})


def test_workers_of_two_versions_share_a_job_and_the_newer_one_takes_messages_that_the_other_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        embedded_broker(tmp_path / "home", LOCKGATE_JOURNAL_URL="none") as settings,
        worker_of("this", tmp_path) as older,
    ):
        with worker_of("newer_version", tmp_path) as newer:
            finish(StagedJob(tmp_path / "shared", settings, files=24))
            assert min(*done(older).values(), *done(newer).values()) > 0, (done(older), done(newer))

            monkeypatch.setattr(tasks.commit_task, "typing", False)
            monkeypatch.setattr(tasks.commit_task, "s", with_checksum)
            before = done(newer)[TASK]
            rows = finish(StagedJob(tmp_path / "newer", settings))
            assert {row["checksum"] for row in rows} == {"c"}
            assert done(newer)[TASK] == before + len(rows)
        refused = StagedJob(tmp_path / "refused", settings)
        with pytest.raises(MissingPartError, match=r"upgrade the workers .* 'checksum'"):
            commit_tasks(*refused.ids, refused.task_ids, timeout_s=300, grace_s=1)
        assert waiting_messages() == 0
        assert refused.committed_attempts() == []


def test_a_worker_that_does_not_know_the_journal_leaves_its_tasks_to_a_newer_one(tmp_path: Path) -> None:
    with (
        embedded_broker(tmp_path / "home") as settings,
        worker_of("older_version", tmp_path) as older,
        worker_of("this", tmp_path) as newer,
    ):
        finish(StagedJob(tmp_path / "job", settings, files=24))
        assert (done(older)[TASK], done(newer)[TASK]) == (0, 24)
        assert "JournalVersionError" in older.log.read_text()
        assert "takes no more messages of queue commit; upgrade it" in older.log.read_text()
