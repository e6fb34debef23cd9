"""The examples on appendable files lose nothing that was acknowledged when their writers are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from examples.appendable.write_ahead_log import HEADER, WriteAheadLog, replay
from lockgate import open_files
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.journal.database.writer_lock import WriterLock

pytestmark = pytest.mark.fault

LOG = """
import logging, sys
from examples.appendable.log_handler import AppendableFileHandler

log = logging.getLogger("child")
log.addHandler(AppendableFileHandler("/logs/a.log", flush_every=int(sys.argv[1])))
for line in sys.stdin:
    log.warning(line.strip())
    print("logged", flush=True)
"""
APPEND = """
from examples.appendable.write_ahead_log import WriteAheadLog
from lockgate import open_files

with open_files() as files, WriteAheadLog(files, "/wal") as log:
    for number in range(1_000_000):
        log.append_record(b"%d " % number * (300_000 if number % 5 == 4 else 1))
        print(number, flush=True)
"""
LOG_AT_THE_END = """
import io, logging
from logging.handlers import MemoryHandler
from lockgate import open_files

opened = open_files()
stream = io.TextIOWrapper(opened.__enter__().create("/a.log"))
logging.getLogger().addHandler(MemoryHandler(100, target=logging.StreamHandler(stream)))
logging.warning("one")
"""
HARD_S = 1.0


@pytest.fixture(autouse=True)
def short_leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKGATE_HOME", str(tmp_path / "home"))
    for name, value in {"RENEW": "0.1", "SOFT": "0.3", "HARD": str(HARD_S)}.items():
        monkeypatch.setenv(f"LOCKGATE_LEASE_{name}_S", value)
    monkeypatch.setenv("LOCKGATE_COMMIT_WINDOW_S", "0.5")


@pytest.fixture
def files() -> Iterator[Files]:
    with open_files() as opened:
        yield opened


def after_the_lease() -> None:
    threading.Event().wait(HARD_S + 0.2)


@contextmanager
def started(script: str, flush_every: int = 1) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process, and kill it at the end."""
    command = [sys.executable, "-c", script, str(flush_every)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def say(process: subprocess.Popen[bytes], line: bytes) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line + b"\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"logged\n"


def test_logged_lines_survive_a_kill_and_the_end_of_a_process(files: Files) -> None:
    with started(LOG) as killed:
        say(killed, b"one")
    after_the_lease()
    with started(LOG, flush_every=100) as ended:
        say(ended, b"two")
        assert ended.stdin is not None
        ended.stdin.close()
        ended.wait(timeout=60)
    with files.open("/logs/a.log") as log:
        assert log.read() == b"one\ntwo\n"
    assert not files.status("/logs/a.log").is_open


def test_what_logging_writes_when_its_process_ends_is_flushed(files: Files) -> None:
    ended = subprocess.run([sys.executable, "-c", LOG_AT_THE_END], capture_output=True, check=True)
    assert b"FencedError" not in ended.stderr
    with files.open("/a.log") as log:
        assert log.read() == b"one\n"


def test_a_handler_whose_file_was_taken_over_while_it_was_stopped_opens_it_again(
    files: Files, tmp_path: Path
) -> None:
    with started(LOG) as stopped:
        say(stopped, b"one")
        with WriterLock(tmp_path / "home" / "journal.db", "journal").locked():  # so it does not have it
            stopped.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, stopped.pid, os.WSTOPPED)
        after_the_lease()
        with files.append("/logs/a.log") as other:
            other.write(b"taken over\n")
        stopped.send_signal(signal.SIGCONT)
        say(stopped, b"two")
        with files.open("/logs/a.log") as log:
            assert log.read() == b"one\ntaken over\ntwo\n"


def test_acknowledged_records_are_replayed_after_a_kill(files: Files) -> None:
    with started(APPEND) as child:
        assert child.stdout is not None
        for _ in range(12):
            acknowledged = int(child.stdout.readline())
    after_the_lease()
    with WriteAheadLog(files, "/wal") as log:
        found = list(replay(files, "/wal"))
        assert acknowledged < len(found) <= acknowledged + 30
        assert [int(record.split()[0]) for record in found] == list(range(len(found)))
        log.append_record(b"more")
    assert list(replay(files, "/wal")) == [*found, b"more"]


def test_a_record_that_is_there_in_part_is_cut_off_before_the_next_one(files: Files) -> None:
    with WriteAheadLog(files, "/wal") as log:
        log.append_record(b"one")
    for part in (b"\0", HEADER.pack(4, 0), HEADER.pack(4, 0) + b"two"):
        with files.append("/wal") as writer:
            writer.write(part)
        assert list(replay(files, "/wal")) == [b"one"]
    with WriteAheadLog(files, "/wal") as log:
        log.append_record(b"")
    assert list(replay(files, "/wal")) == [b"one", b""]
    with files.append("/wal") as writer:
        writer.write(HEADER.pack(3, 0) + b"two")
    with pytest.raises(ValueError, match="no record of 3 bytes"):
        list(replay(files, "/wal"))
