"""Tests of `python -m examples.flights`: its table, its exit, and that no process is left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lockgate.storage_core.blobs.keys import is_blob_key
from lockgate.storage_core.commit.destination.manifest import read_manifest
from lockgate.storage_core.commit.job_summary import list_jobs
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.settings import load_settings
from lockgate.workers.broker.embedded_broker import find_broker

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


def demo(home: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "examples.flights"],
        env={**os.environ, "LOCKGATE_HOME": str(home), "COLUMNS": "600", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def processes_of(home: Path) -> list[str]:
    """Return the command lines of all processes whose environment or arguments name this home."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            names = (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if str(home).encode() in names and state != "Z" and process.name != str(os.getpid()):
            found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


@pytest.mark.demo
def test_the_demo_ends_with_its_table_and_leaves_nothing_running(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with demo(home) as process:
        output, _ = process.communicate(timeout=800)

    assert process.returncode == 0, output
    for step in ("run 1", "verify first run", "run 2, killed", "recovery DAG", "verify second run"):
        assert step in output
    for message in (
        "is blob ",
        "which deleted blob ",
        "library still exists, blob ",
        "library is deleted, too",
    ):
        assert message in output
    [destination] = (home / "lake").iterdir()
    manifest = read_manifest(str(destination))
    assert (manifest.turn, manifest.rows) == (2, 336_776)
    assert [job.phase for job in list_jobs(str(destination))] == [JobPhase.COMMITTED] * 2
    assert [path for path in (home / "blobs").rglob("*") if is_blob_key(path.name)] == []
    assert find_broker(load_settings(home=home)) is None
    assert processes_of(home) == []


@pytest.mark.demo
def test_the_demo_stops_what_it_started_when_it_is_interrupted(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with demo(home) as process:
        deadline = time.monotonic() + 200
        while not list(home.glob("*/airflow/dataset_commit-*.log")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=120)

    assert process.returncode == 130, output
    assert "everything that was started has ended" in output
    assert processes_of(home) == []


def test_without_java_the_demo_names_the_remedy_and_starts_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with demo(home, JAVA_HOME=str(tmp_path / "no-java")) as process:
        output, _ = process.communicate(timeout=120)

    assert process.returncode == 2, output
    assert "Java 17" in output
    assert "Traceback" not in output
    assert processes_of(home) == []
