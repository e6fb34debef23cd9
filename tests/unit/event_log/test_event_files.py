"""Logs of killed processes are closed, and those of old and forgotten jobs are deleted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from lockgate import open_job
from lockgate.storage_core.commit.job_events import end_logs
from lockgate.storage_core.commit.open_or_attach import attach_job
from lockgate.storage_core.commit.recovery.recover import recover_job
from lockgate.storage_core.commit.registry.entries import ForgetJob
from lockgate.storage_core.event_log import event_files, event_queue
from lockgate.storage_core.event_log.merged_events import MergedLog
from lockgate.storage_core.files.scheduled_work import recover_files
from lockgate.storage_core.journal.process_journal import configured_journal
from lockgate.storage_core.satellite.open_overlay import open_files
from lockgate.storage_core.settings import Settings, load_settings
from tests.support.cli import Run, committed_job, document, write
from tests.unit.event_log.conftest import ReadLog

DRIVE = """
import sys, time
from lockgate import open_job
job = open_job(sys.argv[1], "sales")
for number in range(3):
    with job.attempt(f"part-{number}") as attempt, attempt.open(f"{number}.csv") as file:
        file.write(b"a,b")
print(job.job_id, flush=True)
time.sleep(600)
"""


@pytest.fixture
def short(logged: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Let leases lapse within a second."""
    for name, value in {"RENEW": "0.2", "SOFT": "0.5", "HARD": "1.0"}.items():
        monkeypatch.setenv(f"LOCKGATE_LEASE_{name}_S", value)
    monkeypatch.setenv("LOCKGATE_COMMIT_WINDOW_S", "0.5")
    monkeypatch.setattr(event_queue, "IDLE_S", 0.1)
    return load_settings()


def killed_driver(settings: Settings, destination: str) -> str:
    """Kill a driver after its log has three tasks, and return the job's id."""
    with subprocess.Popen([sys.executable, "-c", DRIVE, destination], stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None
        job_id = driver.stdout.readline().decode().strip()
        short_id = attach_job(destination, job_id, settings=settings).short_id
        with open_files(settings) as files:
            log = MergedLog(files, job_id, short_id)
            seen, ends_s = 0, time.monotonic() + 60
            while seen < 4:
                assert time.monotonic() < ends_s, seen
                seen += len(log.read())
                time.sleep(0.05)
        driver.send_signal(signal.SIGKILL)
        assert driver.wait() == -signal.SIGKILL
    return job_id


def states(settings: Settings, destination: str, job_id: str) -> tuple[list[str], list[str]]:
    with open_files(settings) as files:
        log = MergedLog(files, job_id, attach_job(destination, job_id, settings=settings).short_id)
        lines = [event.text for event in log.read()]
        return lines, [file.state for file in log.files]


@pytest.mark.fault
def test_a_killed_drivers_log_is_closed_by_scheduled_work_with_all_flushed_lines(
    short: Settings, destination: str
) -> None:
    job_id = killed_driver(short, destination)
    before, open_ = states(short, destination, job_id)
    assert open_ == ["open"]
    time.sleep(1.1)

    assert len(recover_files(short).files) == 1

    after, closed = states(short, destination, job_id)
    assert after == before
    assert [line.partition(" ")[0] for line in after] == ["opened", "task", "task", "task"]
    assert closed == ["cut"]


@pytest.mark.fault
def test_a_recovery_of_a_killed_drivers_job_appends_its_steps(short: Settings, destination: str) -> None:
    job_id = killed_driver(short, destination)
    time.sleep(1.1)

    assert recover_job(destination, job_id, settings=short).ended == "failed"

    end_logs()
    lines, _ = states(short, destination, job_id)
    # An idle file is closed within a tenth of a second here, so the recovery may have written two.
    assert [line.partition(":")[0] for line in lines if not line.startswith("end of this")] == [
        "opened",
        *[f"task part-{number} committed" for number in range(3)],
        "recovery began",
        "phase",
        "phase",
        "recovery ended",
    ]


def test_a_process_without_exit_handlers_writes_its_last_lines(
    logged: Settings, destination: str, read_log: ReadLog
) -> None:
    job = open_job(destination, "sales", settings=logged)
    child = os.fork()
    if not child:
        write(attach_job(destination, job.job_id, settings=logged))
        end_logs()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert "task part-0 committed: 1 files, 4 bytes" in [event.text for event in read_log(job.record)[0]]


def names(settings: Settings) -> list[str]:
    with open_files(settings) as files:
        return [status.name.partition(".")[0] for status in files.list("/jobs")]


def test_logs_of_forgotten_and_of_long_ended_jobs_are_deleted_and_others_kept(
    logged: Settings, tmp_path: Path, destination: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = {name: committed_job(destination, logged, name) for name in ("forgotten", "old", "new")}
    event_queue.close_event_logs()
    journal = configured_journal(logged)
    assert journal is not None
    with open_files(logged) as files, files.create("/jobs/users.txt"):
        pass
    journal.apply(ForgetJob(destination=jobs["old"].destination, job_id=jobs["forgotten"].job_id))

    assert event_files.delete_old_logs(logged) == 0  # a rescan may be under way
    monkeypatch.setattr(event_files, "YOUNG_S", 0.0)
    shown = run("files", "clean").stdout
    assert "/jobs/forgotten-g1." in shown
    assert "would be deleted" in shown
    assert "new-g1" not in shown
    assert len(names(logged)) == 4
    assert document(run("files", "clean", "--yes", "--json"))["logs"] == 1
    assert names(logged) == ["new-g1", "old-g1", "users"]

    ended: dict[str, Any] = {"tombstone_s": 1e-9}
    assert event_files.delete_old_logs(structs.replace(logged, **ended), dry_run=True) == 2
    assert names(logged) == ["new-g1", "old-g1", "users"]
    assert event_files.delete_old_logs(structs.replace(logged, **ended)) == 2
    assert names(logged) == ["users"]
