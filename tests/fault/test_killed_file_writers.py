"""Writers that are killed at any time lose no flushed line, and readers never see other bytes."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lockgate.storage_core.files.home_files import open_files
from lockgate.storage_core.settings import load_settings
from tests.support.soak import rounds

pytestmark = [pytest.mark.soak, pytest.mark.fault]

WRITE = """
import sys
from lockgate.storage_core.files.home_files import open_files
from lockgate.storage_core.settings import load_settings

path, first = sys.argv[1], int(sys.argv[2])
with open_files(load_settings()) as files:
    writer = files.append(path) if first else files.create(path)
    print("open", flush=True)
    for number in range(first, 1_000_000):
        writer.write(b"%07d\\n" % number)
        writer.flush()
        print(number, flush=True)
        if number % 20 == 0:
            for found in files.recovery.recover_lapsed():
                print("recovered", found.path, found.length_bytes, found.why_not, flush=True)
"""
LINE_BYTES = 8
PATIENCE_S = 60


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOCKGATE_HOME", str(tmp_path / "home"))
    for name, value in {"RENEW": "0.1", "SOFT": "0.3", "HARD": "0.6"}.items():
        monkeypatch.setenv(f"LOCKGATE_LEASE_{name}_S", value)
    monkeypatch.setenv("LOCKGATE_COMMIT_WINDOW_S", "0.5")
    return tmp_path


def lines(data: bytes) -> list[int]:
    assert len(data) % LINE_BYTES == 0, data[-20:]
    return [int(line) for line in data.splitlines()]


def test_a_killed_writer_loses_no_flushed_line(home: Path) -> None:
    drawn, written, survived = random.Random(15), 0, 0
    for number in range(rounds(6, 200)):
        command = [sys.executable, "-c", WRITE, "/events.log", str(written)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"open\n"
            # On a busy machine a writer may be killed before its first line.
            told = [int(writer.stdout.readline()) for _ in range(7 if number % 2 else 0)]
            killed_s = time.monotonic() + drawn.uniform(0, 0.4)
            with open_files(load_settings()) as files, files.open("/events.log") as reader:
                while time.monotonic() < killed_s:
                    reader.seek(0)
                    seen = lines(reader.read())
                    assert seen == list(range(len(seen)))
            writer.kill()
            told += [int(line) for line in writer.stdout.read().split()]
        flushed = told[-1] + 1 if told else written
        with open_files(load_settings()) as files:
            while files.status("/events.log").is_open:
                found = files.recovery.recover_lapsed()
                assert [one.why_not for one in found] == [""] * len(found)
            with files.open("/events.log") as reader:
                after = lines(reader.read())
        assert after == list(range(len(after)))
        assert flushed <= len(after) <= flushed + 1
        survived += len(told)
        written = len(after)
    assert survived > 20
    assert home.exists()


class Service:
    """A process that writes a file of its own, and recovers what others have left."""

    def __init__(self, path: str, first: int) -> None:
        self.path = path
        self.lines: list[str] = []
        command = [sys.executable, "-c", WRITE, path, str(first)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        self.lines += iter(self._process.stdout.readline, "")

    def wait_for(self, begin: str) -> str:
        """Return the first line that begins so."""
        until_s = time.monotonic() + PATIENCE_S
        while not (found := [line for line in self.lines if line.startswith(begin)]):
            assert self._process.poll() is None, self.lines[-3:]
            assert time.monotonic() < until_s, self.lines[-3:]
            time.sleep(0.01)
        return found[0]

    def kill(self) -> int:
        """Kill it, and return the number of lines that it has flushed since its file began."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        numbers = [int(line) for line in self.lines if line.strip().isdecimal()]
        return numbers[-1] + 1 if numbers else 0


def test_two_services_over_one_folder_recover_each_others_files(home: Path) -> None:
    drawn = random.Random(37)
    services = [Service(f"/{name}.log", 0) for name in "ab"]
    try:
        for service in services:
            service.wait_for("open")
        for number in range(rounds(6, 40)):
            victim, other = services[number % 2], services[1 - number % 2]
            time.sleep(drawn.uniform(0, 0.3))
            flushed = victim.kill()
            told = other.wait_for(f"recovered {victim.path} ").split()
            length = int(told[2])
            assert flushed * LINE_BYTES <= length
            with open_files(load_settings()) as files, files.open(victim.path) as reader:
                found = lines(reader.read())
            assert found == list(range(length // LINE_BYTES))
            other.lines.clear()
            other.wait_for("")  # it has gone on with its own file
            services[number % 2] = Service(victim.path, len(found))
            services[number % 2].wait_for("open")
    finally:
        for service in services:
            service.kill()
    assert home.exists()
