"""An attempt is refused in a forked process; the parent process can still use it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lockgate.storage_core.commit.committers import COMMITTERS
from tests.support.commit.destination import World

pytestmark = pytest.mark.slow

PROGRAM = """
import os, signal, sys
from pathlib import Path
from lockgate.storage_core.errors import FencedError
from tests.support.commit.destination import World

def fork_and(act):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    signal.alarm(30)  # one that hangs is not left behind
    status = 1
    try:
        act()
    except FencedError as error:
        status = 0 if f"belongs to process {os.getppid()}" in str(error) else 2
    except SystemExit:
        status = 0
    finally:
        half.abort()
        os._exit(status)

def leave(block):
    with block:
        sys.exit("left the block")

root, *committers = sys.argv[1:]
for committer in committers:
    world = World(Path(root), f"{root}/{committer}")
    job = world.open_job("sales", committer=committer, allow_unsafe=True)
    attempt = job.attempt("t")
    with attempt.open("a.csv") as file:
        file.write(b"of the parent")
    half = attempt.open_upload("b.csv")
    half.write(b"of the ")
    acts = {
        "open": lambda: attempt.open("c.csv"),
        "write": lambda: half.write(b"child"),
        "close": half.close,
        "drop": lambda: attempt.drop("a.csv"),
        "abort": attempt.abort,
        "commit": attempt.commit,
        "leave the attempt": lambda: leave(attempt),
        "leave the job": lambda: leave(job),
    }
    for name in acts if committer == "magic" else ["open"]:
        print(committer, name, fork_and(acts[name]), sep=":", flush=True)
    half.write(b"parent")
    half.close()
    attempt.commit()
    job.commit()
"""


def test_a_fork_is_refused_at_once_and_changes_nothing_of_its_parent_s_attempt(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), *COMMITTERS]
    run = subprocess.run(command, timeout=100, check=True, capture_output=True, text=True)
    lines = [line.split(":") for line in run.stdout.splitlines()]
    assert [line for line in lines if line[-1] != "0"] == []
    assert len(lines) == 8 + len(COMMITTERS) - 1
    for committer in COMMITTERS:
        published = World(tmp_path, str(tmp_path / committer)).visible()
        assert published == {"a.csv": b"of the parent", "b.csv": b"of the parent"}, committer


EXECUTOR_IN_A_TRANSACTION = """
import lockgate.storage_core.commit.open_or_attach
import os, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from lockgate.storage_core.forks import FORKS

pool, begun = ThreadPoolExecutor(1), threading.Event()

def write():
    with FORKS.sqlite_transaction():
        begun.set()
        time.sleep(0.2)  # so that the fork begins to wait before the executor's lock is needed
        pool.submit(int).result()

thread = threading.Thread(target=write)
thread.start()
begun.wait()
child = os.fork()
if child == 0:
    os._exit(int(FORKS.is_tainted))
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
thread.join()
sys.exit(status)
"""


def test_a_transaction_that_needs_an_executor_ends_before_a_fork() -> None:
    command = [sys.executable, "-c", EXECUTOR_IN_A_TRANSACTION]
    assert subprocess.run(command, check=False, timeout=100).returncode == 0


FORKS_OF_TWO_THREADS = """
import os, sys, threading, time
from lockgate.storage_core.forks import FORKS

stop, tainted = threading.Event(), []

def write():
    while not stop.is_set():
        with FORKS.sqlite_transaction():
            time.sleep(0.02)

def fork():
    child = os.fork()
    if child == 0:
        os._exit(int(FORKS.is_tainted))
    tainted.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

writers = [threading.Thread(target=write) for _ in range(3)]
for thread in writers:
    thread.start()
for _ in range(3):
    forking = [threading.Thread(target=fork) for _ in range(2)]
    for thread in forking:
        thread.start()
    for thread in forking:
        thread.join()
stop.set()
for thread in writers:
    thread.join()
sys.exit(any(tainted))
"""


def test_threads_that_fork_at_once_beside_writers_have_children_that_may_use_sqlite() -> None:
    command = [sys.executable, "-c", FORKS_OF_TWO_THREADS]
    assert subprocess.run(command, check=False, timeout=100).returncode == 0
