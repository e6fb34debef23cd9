"""The demo's processes: a session ends with the block, with children that outlive their parent."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from examples.flights.processes import children
from examples.flights.processes.children import ended

pytestmark = pytest.mark.integration

# The parent dies at once on SIGTERM; the child takes its time, as Airflow's task processes do.
SLOW_CHILD = """
import os, pathlib, signal, sys, time
if os.fork() == 0:
    signal.signal(signal.SIGTERM, {on_term})
    pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))
time.sleep(60)
"""


def run_until_the_block_ends(tmp_path: Path, on_term: str) -> int:
    """Run the slow child in a block of `ended` and return its process id."""
    child = tmp_path / "child"
    with (
        subprocess.Popen(
            [sys.executable, "-c", SLOW_CHILD.format(on_term=on_term), str(child)], start_new_session=True
        ) as process,
        ended(process),
    ):
        deadline = time.monotonic() + 30
        while not (child.exists() and child.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    return int(child.read_text())


def is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a_child_that_ends_after_its_parent_has_ended_with_the_block(tmp_path: Path) -> None:
    pid = run_until_the_block_ends(tmp_path, "lambda *_: (time.sleep(1), os._exit(0))")

    assert not is_running(pid)


def test_a_child_that_ignores_the_first_signal_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "GRACE_S", 0.5)
    pid = run_until_the_block_ends(tmp_path, "signal.SIG_IGN")

    assert not is_running(pid)
