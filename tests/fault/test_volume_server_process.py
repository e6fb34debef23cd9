"""Volume servers and writers as processes that are killed and stopped: no flushed byte is lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pytest

from lockgate.storage_core.errors import FencedError
from lockgate.storage_core.files.blocks import BlockRecord
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.home_files import open_files
from lockgate.storage_core.files.namespace.queries import blocks_of, file_at
from lockgate.storage_core.files.namespace.volume_urls import read_urls
from lockgate.storage_core.files.replicas.replica_check import Problem
from lockgate.storage_core.files.volumes.protocol import VolumeId
from lockgate.storage_core.journal import Journal
from lockgate.storage_core.journal.process_journal import configured_journal
from lockgate.storage_core.settings import load_settings
from tests.support.files.volume_server import remote_volume
from tests.support.processes.blob_server import RUN
from tests.support.soak import rounds

pytestmark = [pytest.mark.soak, pytest.mark.fault]

PATIENCE_S = 60.0
LINE_BYTES = 8
WRITE = """
import sys, time
from lockgate.storage_core.errors import AlreadyExistsError
from lockgate.storage_core.files.home_files import open_files
from lockgate.storage_core.settings import Settings, load_settings

path, first, pause_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
with open_files(load_settings(), writes=True) as files:
    try:
        writer = files.create(path)
    except AlreadyExistsError:  # a writer may be killed before its first line
        writer = files.append(path)
    print("open", flush=True)
    for number in range(first, 1_000_000):
        writer.write(b"%07d\\n" % number)
        writer.flush()
        print(number, flush=True)
        time.sleep(pause_s)
"""


def command_of(*arguments: str) -> list[str]:
    return [sys.executable, "-c", RUN, *arguments]


@dataclass
class Server:
    """A volume server in a process of its own, which can be started again on its directory."""

    folder: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> str:
        """Start it on any port, and return its URL."""
        command = command_of("volume-server", "--volume", str(self.folder), "--port", "0")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode().strip()
        assert line.startswith("http://127.0.0.1:")
        return line

    def kill(self) -> None:
        """End it with SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    @property
    def volume(self) -> str:
        """Return the id of its volume."""
        return (self.folder / "volume.id").read_text()


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Server]]:
    monkeypatch.setenv("LOCKGATE_HOME", str(tmp_path / "home"))
    for name, value in {"RENEW": "0.1", "SOFT": "0.4", "HARD": "0.8"}.items():
        monkeypatch.setenv(f"LOCKGATE_LEASE_{name}_S", value)
    monkeypatch.setenv("LOCKGATE_COMMIT_WINDOW_S", "0.5")
    found = [Server(tmp_path / f"volume-{number}") for number in range(3)]
    with ExitStack() as stack:
        for server in found:
            server.start()
            stack.callback(server.kill)
        yield found


class Writer:
    """A process that appends numbered lines to a file, and prints each number once it is flushed."""

    def __init__(self, path: str, first: int, *, pause_s: float = 0.0) -> None:
        command = [sys.executable, "-c", WRITE, path, str(first), str(pause_s)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.out: BinaryIO = self.process.stdout  # type: ignore[assignment]
        self.told: list[int] = []
        assert self.out.readline() == b"open\n", self.process.communicate()

    def line(self) -> int:
        """Return the next number that it prints."""
        self.told.append(int(self.out.readline()))
        return self.told[-1]

    def end(self) -> tuple[list[int], str]:
        """Kill it; return all numbers that it has printed, and its errors."""
        self.process.kill()
        self.told += [int(line) for line in self.out.read().split()]
        _, errors = self.process.communicate()
        return self.told, errors.decode()


def numbers(data: bytes) -> list[int]:
    assert len(data) % LINE_BYTES == 0, data[-20:]
    found = [int(line) for line in data.splitlines()]
    assert found == list(range(len(found)))
    return found


def content(files: Files, path: str) -> list[int]:
    with files.open(path) as reader:
        return numbers(reader.read())


def recovered(path: str) -> list[int]:
    """Recover a file whose writer has ended, and return its numbers."""
    with open_files(load_settings(), writes=True) as files:
        until(lambda: files.recovery.recover_lapsed() == [] and not files.status(path).is_open)
        assert list(files.check(path).findings()) == []
        return content(files, path)


def journal() -> Journal:
    found = configured_journal(load_settings(), None)
    assert found is not None
    return found


def urls() -> Mapping[VolumeId, str]:
    return read_urls(journal())


def blocks(path: str) -> tuple[BlockRecord, ...]:
    with journal().reading() as reading:
        return blocks_of(reading, file_at(reading, path))


def output(*arguments: str) -> str:
    return subprocess.run(command_of(*arguments), check=True, stdout=subprocess.PIPE, text=True).stdout


def until(is_so: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < ends_s
        time.sleep(0.02)


@pytest.mark.timeout(rounds(300, 1_800))
def test_a_writer_killed_at_any_time_loses_no_flushed_line_on_three_servers(servers: list[Server]) -> None:
    drawn, written, survived = random.Random(15), 0, 0
    for number in range(rounds(4, 200)):
        writer = Writer("/events.log", written)
        if number % 2:  # on a busy machine a writer may be killed before its first line
            while len(writer.told) < 3:
                writer.line()
        killed_s = time.monotonic() + drawn.uniform(0, 0.4)
        with open_files(load_settings(), writes=False) as files:
            while time.monotonic() < killed_s:
                content(files, "/events.log")
        told, _ = writer.end()
        flushed = told[-1] + 1 if told else written
        after = recovered("/events.log")
        assert flushed <= len(after) <= flushed + 1
        survived += len(told)
        written = len(after)
    assert survived > 5
    with open_files(load_settings(), writes=False) as files:
        findings = list(files.check(verify=True).findings())
        assert [one for one in findings if one.problem is not Problem.LEFT_OVER] == []
        assert len(files.upkeep.statuses()) == len(servers)


def test_a_writer_that_was_stopped_beyond_its_lease_is_fenced_at_the_volumes(servers: list[Server]) -> None:
    writer = Writer("/events.log", 0)
    before = [writer.line() for _ in range(5)]
    os.kill(writer.process.pid, signal.SIGSTOP)
    try:
        (held,) = blocks("/events.log")
        after = recovered("/events.log")
        assert len(after) >= len(before)
        for volume, url in urls().items():
            with (
                remote_volume(volume, url) as remote,
                pytest.raises(FencedError, match="a newer writer has it"),
            ):
                remote.append(held.block, held.stamp, LINE_BYTES * len(after), b"too late")
    finally:
        os.kill(writer.process.pid, signal.SIGCONT)
    _, errors = writer.process.communicate(timeout=PATIENCE_S)
    assert b"FencedError" in errors
    assert len(held.members) == len(servers)
    with open_files(load_settings(), writes=False) as files:
        assert content(files, "/events.log") == after
        assert list(files.check(verify=True).findings()) == []


def test_a_server_that_hangs_is_dropped_and_its_late_requests_change_nothing(
    servers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKGATE_VOLUME_TIMEOUT_S", "2")
    writer = Writer("/events.log", 0, pause_s=0.01)
    until(lambda: writer.line() >= 5)
    hung = servers[0].process
    assert hung is not None
    os.kill(hung.pid, signal.SIGSTOP)
    try:
        at = writer.line()
        until(lambda: writer.line() >= at + 20)
    finally:
        os.kill(hung.pid, signal.SIGCONT)
    at = writer.line()
    until(lambda: writer.line() >= at + 5)
    told, _ = writer.end()
    after = recovered("/events.log")
    assert told[-1] + 1 <= len(after) <= told[-1] + 2
    with open_files(load_settings(), writes=False) as files:
        found = [(one.volume, one.problem) for one in files.check(verify=True).findings()]
        assert found == [(servers[0].volume, Problem.LEFT_OVER)]


def test_a_server_killed_during_a_write_is_dropped_and_returns_with_replicas_that_are_never_served(
    servers: list[Server],
) -> None:
    away = servers[1]
    writer = Writer("/events.log", 0, pause_s=0.01)
    until(lambda: writer.line() >= 5)
    away.kill()
    at = writer.line()
    until(lambda: writer.line() >= at + 20)  # it goes on with the two others
    away.start()  # at another port, with the replica as it was
    at = writer.line()
    until(lambda: writer.line() >= at + 5)
    with open_files(load_settings(), writes=True) as files:
        assert len(content(files, "/events.log")) >= at + 5
        (left,) = [one for one in files.check().findings() if one.volume == away.volume]
        assert left.problem is Problem.LEFT_OVER
        told, _ = writer.end()
    after = recovered("/events.log")
    assert told[-1] + 1 <= len(after) <= told[-1] + 2

    assert output("volumes", "clean", "--yes") == "1 replica left over: 1 deleted, 0 kept\n"
    with open_files(load_settings(), writes=False) as files:
        assert list(files.check(verify=True).findings()) == []
        assert content(files, "/events.log") == after
    assert list(away.folder.glob("*.head")) == []
    assert output("volumes", "list", "--json").count('"url": "http://127.0.0.1:') == 3
