"""A run of tests that is stopped leaves no process, no server and no file behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

RUN = [sys.executable, "-m", "scripts.with_servers"]
TREE = Path(__file__).parents[2]

COMMAND = """
import json, os, signal, sys, tempfile, time
read, write = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() != 0:
        os._exit(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.write(write, str(os.getpid()).encode())  # an orphan that only SIGKILL ends
    time.sleep(600)
left = {
    "orphan": int(os.read(read, 20)),
    "folder": tempfile.gettempdir(),
    "cluster": os.environ["LOCKGATE_TEST_POSTGRES"].rpartition(":")[0],
}
with open(sys.argv[1] + ".new", "w") as file:
    json.dump(left, file)
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process adopt orphans")
@pytest.mark.requires("postgres")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_stopped_run_leaves_no_process_and_no_file(number: signal.Signals, tmp_path: Path) -> None:
    started = tmp_path / "started"
    command = [*RUN, "--memory", "--postgres", sys.executable, "-c", COMMAND, str(started)]
    run = subprocess.Popen(command, cwd=TREE)
    while not started.exists():
        assert run.poll() is None
        time.sleep(0.02)
    left = json.loads(started.read_text())
    assert psutil.pid_exists(left["orphan"])
    assert servers(left["cluster"])
    run.send_signal(number)
    assert run.wait(60) == 128 + number
    assert not psutil.pid_exists(left["orphan"])
    assert not servers(left["cluster"])
    assert not Path(left["folder"]).exists()
    assert not Path(left["cluster"]).exists()


def servers(cluster: str) -> list[psutil.Process]:
    """Return the processes of a cluster's server."""
    found = psutil.process_iter(["cmdline"])
    return [process for process in found if f"{cluster}/data" in (process.info["cmdline"] or [])]


def test_the_exit_code_of_a_run_is_that_of_its_command() -> None:
    exits = [*RUN, sys.executable, "-c", "raise SystemExit(7)"]
    assert subprocess.run(exits, cwd=TREE, check=False).returncode == 7
