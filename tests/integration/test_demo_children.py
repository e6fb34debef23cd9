"""The demo's processes: a session ends with the block, with children that outlive their parent."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from examples.flights.processes import children
from examples.flights.processes.children import ended, started

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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_the_start_of_a_process_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    processes: list[subprocess.Popen[bytes]] = []

    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *arguments: object, **options: object) -> None:
            super().__init__(*arguments, **options)  # type: ignore[call-overload]
            processes.append(self)
            signal.raise_signal(number)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(number, stop)
    monkeypatch.setattr(children.subprocess, "Popen", Interrupted)
    try:
        with pytest.raises(KeyboardInterrupt), started(["sleep", "60"], tmp_path / "log", {}):
            pytest.fail("the signal was lost")
        assert signal.getsignal(number) is stop
    finally:
        signal.signal(number, before)

    assert [process.poll() for process in processes] == [-signal.SIGTERM]
