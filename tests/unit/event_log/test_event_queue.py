"""The event log that a process writes: what it has, what it costs, and what it never costs."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from lockgate import open_job
from lockgate.storage_core.commit.job_events import acting_as
from lockgate.storage_core.commit.open_or_attach import attach_job
from lockgate.storage_core.commit.recovery.recover import recover_job
from lockgate.storage_core.errors import StoreUnavailableError
from lockgate.storage_core.event_log import event_queue, event_writers
from lockgate.storage_core.files.volumes.local import LocalVolume
from lockgate.storage_core.journal.process_journal import configured_journal
from lockgate.storage_core.settings import Settings
from tests.support.cli import committed_job, lapsed_job, write
from tests.support.journal.database import entries
from tests.support.postgres import Server
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


def test_a_log_costs_four_entries_however_many_tasks_there_are(
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
    assert cost("one", logged, 1) - cost("one-without", without, 1) == 4
    assert cost("ten", logged, 10) - cost("ten-without", without, 10) == 4


def test_a_job_without_a_journal_or_with_the_log_turned_off_has_none(
    logged: Settings, destination: str, read_log: ReadLog
) -> None:
    off = structs.replace(logged, job_log=False)
    assert read_log(committed_job(destination, off).record) == ([], [])
    without = structs.replace(logged, journal_url="none")
    committed_job(destination + "2", without)
    assert not (logged.home_dir / "volumes").exists()


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
        broken.setattr(LocalVolume, call, fail)
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


def test_a_file_is_closed_and_the_volume_given_up_after_some_idle_time(
    logged: Settings, destination: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_queue, "IDLE_S", 0.05)
    open_job(destination, "sales", settings=logged)
    (thread,) = [one for one in threading.enumerate() if one.name == "lockgate-event-log"]
    thread.join(30)
    assert not thread.is_alive()
    (volume,) = (logged.home_dir / "volumes").iterdir()
    LocalVolume(volume).close()  # it is free


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
def test_a_journal_of_several_machines_without_volumes_has_no_log_and_no_task_warns_of_it(
    logged: Settings,
    destination: str,
    postgres: Server,
    caplog: pytest.LogCaptureFixture,
) -> None:
    url = postgres.new_database("job_log_without_volumes")
    settings = structs.replace(logged, journal_url=url)
    with caplog.at_level(logging.DEBUG, "lockgate"):
        committed_job(destination, settings)
        event_queue.close_event_logs()
        committed_job(destination, settings, "other")
        event_queue.close_event_logs()

    records = [record for record in caplog.records if "event log is not written" in record.message]
    assert len(records) == 1
    assert "no volume is registered" in records[0].message
    assert records[0].levelno == logging.DEBUG
    assert not (logged.home_dir / "volumes").exists()


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

    def wait(*arguments: Any) -> Any:
        held.begun.set()
        assert held.released.wait(60)
        return create(*arguments)

    monkeypatch.setattr(event_writers.Files, "create", wait)
    return held
