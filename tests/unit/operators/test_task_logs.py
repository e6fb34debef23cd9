"""Task logs are published while their files grow; Airflow reads them on machines without the files."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.config_templates.airflow_local_settings import DEFAULT_LOGGING_CONFIG
from airflow.sdk._shared.logging.remote import RemoteLogStreamIO, discover_remote_log_handler
from airflow.sdk._shared.module_loading import import_string
from airflow.sdk.configuration import conf
from airflow.utils.state import TaskInstanceState

from lockgate.operators import task_logs
from lockgate.operators.task_logs import BlobTaskLogs
from lockgate.storage_core.blobs.cache.process_cache import configured_cache
from lockgate.storage_core.blobs.logs.log_reader import LogReader
from lockgate.storage_core.blobs.logs.log_versions import Log
from lockgate.storage_core.blobs.logs.log_writer import LogWriter
from lockgate.storage_core.blobs.logs.publisher_thread import LogPublisher
from lockgate.storage_core.blobs.server.blob_server import BlobServer
from lockgate.storage_core.errors import StoreUnavailableError
from lockgate.storage_core.settings import load_settings
from tests.support.blobs.log_text import log_text
from tests.support.blobs.server import BlobWorld, blob_world, damage

TASK = "dag_id=sales/run_id=r/task_id=load/attempt=1.log"
TRIGGER = f"{TASK}.trigger.7.log"


class Ticks:
    """A clock whose waits end when the test decides, so that no thread runs by itself."""

    def __init__(self) -> None:
        self.tick = threading.Semaphore(0)
        self.waiting = threading.Semaphore(0)

    def now_s(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        raise AssertionError("a follower does not sleep")

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.waiting.release()
        self.tick.acquire()
        return event.is_set()


@dataclass
class Folder:
    """Airflow's folder of logs."""

    path: Path

    def write(self, name: str, data: str) -> Path:
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as opened:
            opened.write(data)
        return file


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    folder = Folder(tmp_path / "logs")
    monkeypatch.setenv("AIRFLOW__LOGGING__BASE_LOG_FOLDER", str(folder.path))
    processor = str(folder.path / "dag_processor")
    monkeypatch.setenv("AIRFLOW__LOGGING__DAG_PROCESSOR_CHILD_PROCESS_LOG_DIRECTORY", processor)
    task_logs._task_file_at.cache_clear()
    yield folder
    task_logs._task_file_at.cache_clear()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[BlobWorld]:
    with blob_world(tmp_path) as world:
        yield world


def event(logs: BlobTaskLogs, file: str | int) -> Any:
    """Pass an event through the processor that writes it to a file."""
    logger = SimpleNamespace(_file=SimpleNamespace(name=file))
    (processor,) = logs.processors
    fields = {"event": "x"}
    assert processor(logger, "info", fields) is fields
    return logs._follower._writers


def test_airflow_finds_the_handler_beside_its_own_logging_configuration() -> None:
    handler, connection = discover_remote_log_handler(
        "lockgate.operators.task_logs.LOGGING_CONFIG", "", import_string
    )
    assert isinstance(handler, RemoteLogStreamIO)
    assert connection is None
    assert task_logs.LOGGING_CONFIG is DEFAULT_LOGGING_CONFIG


def test_the_log_of_an_ended_task_is_read_on_a_machine_without_its_file(folder: Folder) -> None:
    file = folder.write(TASK, '{"event": "first"}\n{"event": "last"}\n')
    logs = BlobTaskLogs()
    logs.upload(TASK, None)
    file.unlink()
    sources, texts = logs.read(TASK, None)
    assert texts == ['{"event": "first"}\n{"event": "last"}']
    assert sources == [f"{TASK}: version 1, 37 bytes in 1 blobs"]


def test_a_log_belongs_to_the_airflow_scope_in_which_it_was_published(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = BlobTaskLogs()
    for scope, data in (("", "of one\n"), ("prod", "of another, with the same DAG\n")):
        monkeypatch.setenv("LOCKGATE_AIRFLOW_SCOPE", scope)
        file = folder.write(TASK, data)
        logs.upload(TASK, None)
        file.unlink()
    assert logs.read(TASK, None)[1] == ["of another, with the same DAG"]
    monkeypatch.delenv("LOCKGATE_AIRFLOW_SCOPE")
    assert logs.read(TASK, None)[1] == ["of one"]


def test_a_deferred_tasks_log_is_shown_with_its_triggers(folder: Folder) -> None:
    logs = BlobTaskLogs()
    for name, data in ((TASK, "before\n"), (TRIGGER, "in the trigger\n"), (TASK, "after\n")):
        folder.write(name, data)
        logs.upload(name, None)
    _, streams = logs.stream(TASK, None)
    assert [list(stream) for stream in streams] == [["before", "after"], ["in the trigger"]]


def test_a_missing_log_is_reported_as_missing(folder: Folder) -> None:
    logs = BlobTaskLogs()
    logs.upload(TASK, None)
    sources, texts = logs.read(TASK, None)
    assert texts is None
    assert sources == [f"No blobs of {TASK} are published."]


def test_an_unavailable_log_is_reported_and_airflow_tries_other_sources(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(self: LogReader) -> None:
        raise StoreUnavailableError("the blob server is away")

    monkeypatch.setattr(LogReader, "versions", away)
    sources, streams = BlobTaskLogs().stream(TASK, None)
    assert streams == []
    assert "the blob server is away" in sources[0]


def test_a_damaged_part_of_a_log_is_shown_as_a_line_that_reports_it(folder: Folder) -> None:
    folder.write(TASK, "first\n")
    logs = BlobTaskLogs()
    logs.upload(TASK, None)
    server = configured_cache(load_settings()).origin
    assert isinstance(server, BlobServer)
    (version,) = LogReader(server, Log(name=TASK)).versions()
    damage(server.stores.local.path_of("no_job", version.parts[0].blob_key))
    (lines,) = logs.stream(TASK, None)[1]
    assert [line for line in lines if "cannot be read" in line and TASK in line]


@pytest.mark.parametrize("state", ["success", TaskInstanceState.FAILED, None])
def test_an_incomplete_log_of_an_ended_task_is_reported_as_incomplete(
    folder: Folder, state: str | None
) -> None:
    file = folder.write(TASK, "first\n")
    task_logs._writer(file).publish()
    (lines,) = BlobTaskLogs().stream(TASK, SimpleNamespace(state=state))[1]
    first, last = lines
    assert first == "first"
    assert f"{TASK} was published only up to byte 6" in last


@pytest.mark.parametrize("ti", [None, *map(TaskInstanceState, ("running", "deferred"))])
def test_a_log_that_may_grow_is_shown_without_a_notice(folder: Folder, ti: TaskInstanceState | None) -> None:
    file = folder.write(TASK, "first\n")
    task_logs._writer(file).publish()
    task_instance = ti and SimpleNamespace(state=ti)
    assert [list(stream) for stream in BlobTaskLogs().stream(TASK, task_instance)[1]] == [["first"]]


def test_an_uploaded_log_is_complete_whether_or_not_it_grew_before_the_upload(folder: Folder) -> None:
    for name, grown in ((TASK, ""), (TRIGGER, "last\n")):
        task_logs._writer(folder.write(name, "first\n")).publish()
        folder.write(name, grown)
        BlobTaskLogs().upload(name, None)
    sources, streams = BlobTaskLogs().stream(TASK, SimpleNamespace(state="success"))
    assert [list(stream) for stream in streams] == [["first"], ["first", "last"]]
    assert ["version 2" in source for source in sources] == [True, True]
    BlobTaskLogs().upload(TASK, None)
    assert BlobTaskLogs().stream(TASK, None)[0] == sources, "it was whole already"


def test_the_local_file_is_deleted_only_if_airflow_is_configured_so(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = folder.write(TASK, "first\n")
    BlobTaskLogs().upload(TASK, None)
    assert file.exists()
    monkeypatch.setenv("AIRFLOW__LOGGING__DELETE_LOCAL_LOGS", "True")
    assert conf.getboolean("logging", "delete_local_logs")
    BlobTaskLogs().upload(TASK, None)
    assert not file.exists()


def test_events_of_a_task_start_following_its_file_until_the_task_ends(folder: Folder) -> None:
    logs = BlobTaskLogs()
    file = folder.write(TASK, "first\n")
    assert list(event(logs, str(file))) == [file]
    assert list(event(logs, str(file))) == [file]
    logs.upload(TASK, None)
    assert logs._follower._writers == {}


@pytest.mark.parametrize("file", ["<stdout>", 7, "/elsewhere/x.log", "dag_processor"])
def test_events_without_a_task_start_following_no_file(folder: Folder, file: str | int) -> None:
    named = str(folder.path / "dag_processor" / "dags.py.log") if file == "dag_processor" else file
    assert event(BlobTaskLogs(), named) == {}


def publisher(world: BlobWorld, ticks: Ticks) -> LogPublisher:
    """Return a publisher of the log `log`."""
    return LogPublisher(
        lambda path: LogWriter(world.server, Log(name="log"), path), every_s=lambda: 10.0, clock=ticks
    )


def test_a_followed_file_is_published_at_each_tick_and_as_a_whole_at_its_end(
    world: BlobWorld, tmp_path: Path
) -> None:
    file, log, ticks = tmp_path / "log", Log(name="log"), Ticks()
    file.write_text("first\n")
    follower = publisher(world, ticks)
    follower.follow(file)
    follower.follow(file)
    ticks.waiting.acquire()
    reader = LogReader(world.server, log)
    assert reader.versions() == []
    for number in range(2):
        ticks.tick.release()
        ticks.waiting.acquire()
        assert log_text(reader) == "first\n" + "more\n" * number
        with file.open("a") as opened:
            opened.write("more\n")
    follower.finish(file)
    ticks.tick.release()
    assert log_text(reader) == "first\nmore\nmore\n"
    for thread in threading.enumerate():
        if thread.name == "lockgate-logs":
            thread.join()


def test_a_fork_follows_nothing(world: BlobWorld, tmp_path: Path) -> None:
    ticks = Ticks()
    follower = publisher(world, ticks)
    follower.follow(tmp_path / "log")
    parents = follower._all_done
    assert parents is not None
    follower.after_fork_in_child()
    assert follower._writers == {}
    assert follower._all_done is None
    parents.set()
    ticks.tick.release()


def lose_puts(world: BlobWorld, patch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> None:
        raise StoreUnavailableError("the blob server is away")

    patch.setattr(world.server, "put", away)


def test_the_thread_publishes_the_end_of_a_file_after_a_failure_and_then_stops_following_it(
    world: BlobWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, log, ticks = tmp_path / "log", Log(name="log"), Ticks()
    file.write_text("first\n")
    follower = publisher(world, ticks)
    with monkeypatch.context() as patch:
        lose_puts(world, patch)
        with pytest.raises(StoreUnavailableError):
            follower.finish(file)
        ticks.waiting.acquire()
        ticks.tick.release()
        ticks.waiting.acquire()
    with file.open("a") as opened:
        opened.write("Failed to upload remote logs\n")
    follower.follow(file)
    ticks.tick.release()
    ticks.waiting.acquire()
    ticks.tick.release()
    (version,) = LogReader(world.server, log).versions()
    assert log_text(LogReader(world.server, log)) == file.read_text()
    assert version.growing == []
    assert follower._writers == {}
    assert follower._all_done is None
    follower.follow(file)
    assert list(follower._writers) == [file], "it grows again"
    follower.finish(file)
    ticks.tick.release()


def test_a_late_end_keeps_the_log_that_another_machine_has_published(
    world: BlobWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there, log, ticks = tmp_path / "here", tmp_path / "there", Log(name="log"), Ticks()
    here.write_text("first\n")
    follower = publisher(world, ticks)
    follower.follow(here)
    follower.publish()
    here.write_text("first\nlast here\n")
    with monkeypatch.context() as patch:
        lose_puts(world, patch)
        with pytest.raises(StoreUnavailableError):
            follower.finish(here)
    there.write_text("there\n")
    LogWriter(world.server, log, there).publish(ends=True)
    follower.publish()
    (version,) = LogReader(world.server, log).versions()
    assert log_text(LogReader(world.server, log)) == "first\nthere\nlast here\n"
    assert version.growing == []
    ticks.tick.release()
