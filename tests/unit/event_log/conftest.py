from __future__ import annotations

from collections.abc import Callable

import pytest

from lockgate.storage_core.commit.job_events import JobEvent
from lockgate.storage_core.commit.records.job_record import JobRecord
from lockgate.storage_core.event_log import event_queue, event_writers
from lockgate.storage_core.event_log.merged_events import MergedLog
from lockgate.storage_core.satellite.open_overlay import open_files
from lockgate.storage_core.settings import Settings, load_settings

ReadLog = Callable[[JobRecord], tuple[list[JobEvent], list[str]]]


@pytest.fixture
def logged(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Turn the event log on, and let it wait for nothing."""
    monkeypatch.setenv("LOCKGATE_JOB_LOG", "true")
    monkeypatch.setattr(event_queue, "FLUSH_EVERY_S", 0.01)
    monkeypatch.setattr(event_writers, "REST_S", 0.0)
    return load_settings(home=settings.home)


@pytest.fixture
def read_log(logged: Settings) -> ReadLog:
    """Return a function that ends this process's logs, and returns a job's lines and its files' states."""

    def read(job: JobRecord) -> tuple[list[JobEvent], list[str]]:
        event_queue.close_event_logs()
        with open_files(logged) as files:
            log = MergedLog(files, job.job_id, job.short_id)
            return log.read(), [file.state for file in log.files]

    return read
