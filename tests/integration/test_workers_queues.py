"""Tests of workers that do not listen to the requested queue."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockgate.storage_core.errors import MissingPartError
from lockgate.workers.dispatch import commit_tasks
from tests.support.workers.celery_worker import StagedJob, embedded_broker, worker_process

pytestmark = pytest.mark.integration


def test_a_worker_listening_only_to_other_queues_is_not_counted(tmp_path: Path) -> None:
    with embedded_broker(tmp_path / "home") as settings:
        staged = StagedJob(tmp_path, settings)
        with (
            worker_process(tmp_path / "log", queues=["sweep"]),
            pytest.raises(MissingPartError, match="no worker listens on queue 'commit'"),
        ):
            commit_tasks(*staged.ids, staged.task_ids, timeout_s=60, grace_s=0.5)

    assert staged.committed_attempts() == []
