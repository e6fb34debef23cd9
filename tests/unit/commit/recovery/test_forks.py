"""An attempt is refused in a forked process; the parent process can still use it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lockgate.storage_core.commit.committers import COMMITTERS
from tests.support.commit.destination import World

pytestmark = pytest.mark.slow

PROGRAM = """
import os, signal, sys
from pathlib import Path
from lockgate.storage_core.errors import FencedError
from tests.support.commit.destination import World

root, url, committer, act = sys.argv[1:]
world = World(Path(root), url)
job = world.open_job("sales", committer=committer, allow_unsafe=True)
attempt = job.attempt("t")
with attempt.open("a.csv") as file:
    file.write(b"of the parent")
half = attempt.open_upload("b.csv")
half.write(b"of the ")

def leave_the_block():
    with attempt:
        sys.exit("left the block")

def leave_the_job():
    with job:
        sys.exit("left the job")

acts = {
    "leave the job": leave_the_job,
    "open": lambda: attempt.open("c.csv"),
    "write": lambda: half.write(b"child"),
    "close": lambda: half.close(),
    "drop": lambda: attempt.drop("a.csv"),
    "abort": attempt.abort,
    "commit": attempt.commit,
    "leave": leave_the_block,
}
child = os.fork()
if child == 0:
    signal.alarm(30)  # one that hangs is not left behind
    status = 1
    try:
        acts[act]()
    except FencedError as error:
        status = 0 if f"belongs to process {os.getppid()}" in str(error) else 2
    except SystemExit:
        status = 0
    finally:
        half.abort()
        os._exit(status)
_, status = os.waitpid(child, 0)
half.write(b"parent")
half.close()
attempt.commit()
job.commit()
sys.exit(os.waitstatus_to_exitcode(status))
"""
PUBLISHED = {"a.csv": b"of the parent", "b.csv": b"of the parent"}


def fork_and(world: World, act: str, committer: str) -> int:
    """Call a function in a fork, then publish in the parent; return the exit status of the fork."""
    command = [sys.executable, "-c", PROGRAM, str(world.root), world.url, committer, act]
    return subprocess.run(command, timeout=60, check=False).returncode


@pytest.mark.parametrize("act", ["open", "write", "close", "drop", "abort", "commit"])
def test_a_fork_is_refused_at_once_and_changes_nothing_of_its_parent_s_attempt(
    world: World, act: str
) -> None:
    assert fork_and(world, act, "magic") == 0
    assert world.visible() == PUBLISHED


@pytest.mark.parametrize("act", ["leave", "leave the job"])
def test_a_fork_that_exits_the_block_of_an_attempt_or_a_job_does_not_abort_it(world: World, act: str) -> None:
    assert fork_and(world, act, "magic") == 0
    assert world.visible() == PUBLISHED


@pytest.mark.parametrize("committer", COMMITTERS)
def test_no_committer_accepts_files_of_a_fork(world: World, committer: str) -> None:
    assert fork_and(world, "open", committer) == 0
    assert world.visible() == PUBLISHED


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
