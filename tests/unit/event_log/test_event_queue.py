"""The event log that a process writes: what it has, what it costs, and what it never costs."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from lockgate import open_job
from lockgate.storage_core.commit.job_events import acting_as
from lockgate.storage_core.commit.open_or_attach import attach_job
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.layout import is_hidden
from lockgate.storage_core.commit.recovery.recover import recover_job
from lockgate.storage_core.commit.recovery.retention import _delete_folder
from lockgate.storage_core.commit.registry.entries import ForgetJob
from lockgate.storage_core.errors import ObjectNotFoundError, StoreUnavailableError
from lockgate.storage_core.event_log import event_files, event_queue, event_writers
from lockgate.storage_core.event_log.merged_events import MergedLog
from lockgate.storage_core.files.volumes.directory.directory_volume import DirectoryVolume
from lockgate.storage_core.journal.process_journal import configured_journal
from lockgate.storage_core.satellite.open_overlay import open_files
from lockgate.storage_core.settings import Settings, load_settings
from lockgate.storage_core.stores import open_store
from tests.support.cli import committed_job, lapsed_job, write
from tests.support.journal.database import entries
from tests.support.postgres import Server
from tests.support.s3 import real_server
from tests.unit.event_log.conftest import ReadLog

COMMITTED = [
    "opened",
    "task part-0 committed: 1 files, 4 bytes",
    "phase: decided",
    "shard 0 completed: 1 files",
    "phase: published",
    "phase: committed: 1 files, 4 bytes",
    "end of this process's log",
]


def texts(read: ReadLog, job: Any) -> list[str]:
    return [event.text for event in read(job.record)[0]]


def test_the_log_has_each_phase_task_and_shard_of_a_job(
    logged: Settings, destination: str, read_log: ReadLog
) -> None:
    job = committed_job(destination, logged)

    events, states = read_log(job.record)

    assert [event.text for event in events] == COMMITTED
    assert {(event.role, event.process.rpartition(":")[2]) for event in events} == {
        ("driver", str(os.getpid()))
    }
    assert states == ["closed"]


def test_a_task_that_another_process_commits_and_a_recovery_have_files_of_their_own(
    logged: Settings, destination: str, read_log: ReadLog
) -> None:
    job = lapsed_job(destination, logged)
    event_queue.close_event_logs()
    with acting_as("worker"):
        write(attach_job(destination, job.job_id, settings=logged), "b.csv", "part-1")
    event_queue.close_event_logs()
    recover_job(destination, job.job_id, settings=logged)

    events, states = read_log(job.record)

    assert [(event.role, event.event, event.phase) for event in events if event.event != "closed"] == [
        ("driver", "opened", ""),
        ("driver", "task committed", ""),
        ("driver", "suspended", ""),
        ("worker", "task committed", ""),
        ("recovery", "recovery began", "open"),
        ("recovery", "phase", "aborting"),
        ("recovery", "phase", "failed"),
        ("recovery", "recovery ended", "failed"),
    ]
    assert states == ["closed"] * 3


def test_an_aborted_job_and_a_failed_commit_say_why(
    logged: Settings, destination: str, read_log: ReadLog
) -> None:
    job = open_job(destination, "audited", audit=True, settings=logged)
    write(job)
    with pytest.raises(Exception, match="audit"):
        job.commit()

    events, states = read_log(job.record)
    lines = [event.text for event in events]

    assert states == ["closed"]
    assert any(line.startswith("phase: aborting: ") and "audit" in line for line in lines)
    assert any(line.startswith("commit failed: ") and "audit" in line for line in lines)


def test_a_log_costs_three_entries_however_many_tasks_there_are(
    logged: Settings, destination: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cost(name: str, settings: Settings, tasks: int) -> int:
        journal = configured_journal(settings)
        assert journal is not None
        before = entries(journal)
        job = open_job(destination, name, settings=settings)
        for task in range(tasks):
            write(job, f"{task}.csv", f"part-{task}")
        job.commit()
        event_queue.close_event_logs()
        return entries(journal) - before

    without = structs.replace(logged, job_log=False)
    cost("first", logged, 1)  # registers the volume, and makes the directory of logs
    assert cost("one", logged, 1) - cost("one-without", without, 1) == 3
    assert cost("ten", logged, 10) - cost("ten-without", without, 10) == 3


def test_a_job_without_a_journal_or_with_the_log_turned_off_has_none(
    logged: Settings, destination: str, read_log: ReadLog
) -> None:
    off = structs.replace(logged, job_log=False)
    assert read_log(committed_job(destination, off).record) == ([], [])
    without = structs.replace(logged, journal_url="none")
    committed_job(destination + "2", without)
    assert not (logged.home_dir / "volume").exists()


@pytest.mark.parametrize("call", ["create", "append", "flush"])
def test_a_volume_that_fails_costs_lines_and_not_the_job(  # noqa: PLR0917 - fixtures
    call: str,
    logged: Settings,
    destination: str,
    read_log: ReadLog,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: object) -> None:
        raise StoreUnavailableError("the disk is full")

    job = open_job(destination, "sales", settings=logged)
    with monkeypatch.context() as broken, caplog.at_level(logging.WARNING):
        broken.setattr(DirectoryVolume, call, fail)
        write(job)
        event_queue.close_event_logs()
        write(job, "b.csv", "part-1")
        event_queue.close_event_logs()
    job.commit()

    assert job.phase() == "committed"
    lines = texts(read_log, job)
    assert lines[-4:-1] == [
        "shard 0 completed: 2 files",
        "phase: published",
        "phase: committed: 2 files, 8 bytes",
    ]
    assert any(line.endswith("lines of this log were lost") for line in lines)
    warnings = [record for record in caplog.records if "event log is not written" in record.message]
    assert len(warnings) == 1
    assert "the job is not affected" in warnings[0].message


def test_the_log_says_how_many_lines_were_lost(
    logged: Settings, destination: str, read_log: ReadLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_queue, "QUEUED", 2)
    held = held_thread(monkeypatch)
    job = open_job(destination, "sales", settings=logged)
    held.wait_begun()
    for task in range(5):
        write(job, f"{task}.csv", f"part-{task}")  # two wait, three are lost
    held.release()
    event_queue.close_event_logs()
    job.commit()

    lines = texts(read_log, job)
    assert "3 lines of this log were lost" in lines
    assert sum("part-" in line for line in lines) == 2


def test_a_volume_that_does_not_answer_delays_no_commit(
    logged: Settings, destination: str, read_log: ReadLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = held_thread(monkeypatch)

    job = committed_job(destination, logged)

    assert held.begun.is_set()
    assert job.phase() == "committed"
    assert not held.released.is_set()
    held.release()
    assert texts(read_log, job) == COMMITTED


def test_the_end_of_a_process_waits_for_a_volume_only_so_long(
    logged: Settings, destination: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    held = held_thread(monkeypatch)
    committed_job(destination, logged)
    began_s = time.monotonic()
    event_queue.close_event_logs(0.1)
    assert time.monotonic() - began_s < 5
    assert "may lack its last lines" in caplog.text
    caplog.clear()
    held.release()
    event_queue.close_event_logs()
    assert caplog.text == ""


def test_a_file_is_closed_after_some_idle_time(
    logged: Settings, destination: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_queue, "IDLE_S", 0.05)
    open_job(destination, "sales", settings=logged)
    (thread,) = [one for one in threading.enumerate() if one.name == "lockgate-event-log"]
    thread.join(30)
    assert not thread.is_alive()
    with open_files(logged) as files:
        assert [status.is_open for status in files.list("/jobs")] == [False]


def test_a_fork_writes_a_file_of_its_own(logged: Settings, destination: str, read_log: ReadLog) -> None:
    job = open_job(destination, "sales", settings=logged)
    write(job)
    child = os.fork()
    if not child:
        with acting_as("worker"):
            write(attach_job(destination, job.job_id, settings=logged), "b.csv", "part-1")
        event_queue.close_event_logs()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    job.commit()

    events, states = read_log(job.record)

    committed = {event.task_id: event.process for event in events if event.event == "task committed"}
    assert committed["part-0"].endswith(f":{os.getpid()}")
    assert committed["part-1"].endswith(f":{child}")
    assert states == ["closed", "closed"]


@pytest.mark.requires("postgres")
def test_two_machines_with_one_journal_and_no_volume_keep_the_log_at_the_jobs_destination(
    logged: Settings, tmp_path: Path, postgres: Server, caplog: pytest.LogCaptureFixture
) -> None:
    url = postgres.new_database("job_log_at_the_destination")
    check_log_at_the_destination(logged, str(tmp_path / "lake"), url)
    assert not (tmp_path / "lake" / "_lockgate" / "jobs" / "sales-g1" / "log").exists()
    assert not list(tmp_path.rglob("volume"))
    assert "event log" not in caplog.text


@pytest.mark.integration
@pytest.mark.requires("postgres")
@pytest.mark.requires("s3-server")
def test_a_log_at_a_destination_in_a_bucket(
    logged: Settings, postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in real_server.environment().items():
        monkeypatch.setenv(name, value)
    settings = load_settings(home=logged.home_dir)
    check_log_at_the_destination(
        settings, real_server.new_url(), postgres.new_database("job_log_in_a_bucket")
    )


@pytest.mark.requires("postgres")
def test_a_destination_that_can_have_no_volume_has_no_log_and_no_task_warns_of_it(
    logged: Settings,
    destination: str,
    postgres: Server,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(event_writers, "make_log_volume", lambda url, _: asked.append(url))
    settings = structs.replace(logged, journal_url=postgres.new_database("job_log_without_a_volume"))
    committed_job(destination, settings)
    event_queue.close_event_logs()
    assert len(asked) == 1
    assert asked[0].endswith("/_lockgate/jobs/sales-g1/log")
    assert "event log" not in caplog.text
    with open_files(settings) as files, pytest.raises(ObjectNotFoundError):
        files.list("/jobs")


def check_log_at_the_destination(logged: Settings, destination: str, journal_url: str) -> None:
    """Let two machines write a job's log, read it on both, and delete it with the job's records."""
    here = structs.replace(logged, journal_url=journal_url, home=logged.home_dir / "here")
    there = structs.replace(here, home=logged.home_dir / "there")
    job = open_job(destination, "sales", settings=here)
    write(job)
    event_queue.close_event_logs()
    with acting_as("worker"):
        write(attach_job(destination, job.job_id, settings=there), "b.csv", "part-1")
    event_queue.close_event_logs()
    job.commit()
    event_queue.close_event_logs()
    for settings in (here, there):
        with open_files(settings) as files:
            log = MergedLog(files, job.job_id, job.short_id)
            tasks = [event.task_id for event in log.read() if event.event == "task committed"]
            assert (tasks, [file.why_not for file in log.files]) == (["part-0", "part-1"], [""] * 3)
            assert files.upkeep.repair().copied == 0
    store = open_store(destination, here)
    folder = JobFolder(store, job.job_id)
    names = [info.key for page in store.pages() for info in page if not is_hidden(info.key)]
    assert len(names) == 2

    _delete_folder(folder)
    assert [info.key for page in store.pages(folder.prefix) for info in page] == []
    journal = configured_journal(here)
    assert journal is not None
    journal.apply(ForgetJob(destination=job.destination, job_id=job.job_id))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_files, "YOUNG_S", 0.0)
        assert event_files.delete_old_logs(there) == 3
    with open_files(there) as files:
        assert (files.remove_deleted().kept_blocks, files.list("/jobs")) == (0, [])


class Held:
    """The log's thread, held before it opens a file."""

    def __init__(self) -> None:
        self.begun, self.released = threading.Event(), threading.Event()

    def wait_begun(self) -> None:
        assert self.begun.wait(30)

    def release(self) -> None:
        self.released.set()


def held_thread(monkeypatch: pytest.MonkeyPatch) -> Held:
    held = Held()
    create: Callable[..., Any] = event_writers.Files.create

    def wait(*arguments: Any, **named: Any) -> Any:
        held.begun.set()
        assert held.released.wait(60)
        return create(*arguments, **named)

    monkeypatch.setattr(event_writers.Files, "create", wait)
    return held
