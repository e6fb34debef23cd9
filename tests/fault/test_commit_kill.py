"""Kill a real driver with -9 before, during and after its job commit, and recover from this process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.errors import ConflictError
from tests.support.commit.destination import ManualClock, World
from tests.support.soak import IS_SOAK

pytestmark = pytest.mark.fault

DRIVER = """
import sys
from lockgate import open_job
with open_job(sys.argv[1], "new", mode=sys.argv[2]) as job:
    for number in range(4):
        with job.attempt(f"task-{number}") as attempt:
            for part in ("a", "b"):
                with attempt.open(f"day={number}/{part}.csv") as file:
                    file.write(f"new {number} {part}".encode())
    job.commit()
"""
NEW = {
    f"day={number}/{part}.csv": f"new {number} {part}".encode() for number in range(4) for part in ("a", "b")
}
OLD = {"day=0/a.csv": b"old"}

UNDONE = {
    "in the middle of a task": "task-write.seal.before=kill@3",
    "before the decision": "decide.create.before=kill",
}
PUBLISHED = {
    "after the decision": "decide.create.after=kill",
    "in the middle of the completions": "complete.complete.after=kill@5",
    "before the terminal marker": "end.create.before=kill",
}


def in_both_modes(moments: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return each moment with a mode; in `make test` the modes alternate."""
    pairs = [(when, mode) for when in moments for mode in ("append", "replace")]
    return pairs if IS_SOAK else [pairs[2 * number + number % 2] for number in range(len(moments))]


@pytest.fixture
def world(tmp_path: Path) -> World:
    found = World(tmp_path, str(tmp_path / "dest"), ManualClock(time.time()))
    found.run("old", OLD)
    return found


def drive(world: World, mode: str, failpoint: str) -> int:
    """Run the driver in a separate process and return its exit status."""
    environment = {**os.environ, "LOCKGATE_FAILPOINTS": failpoint, "LOCKGATE_HOME": str(world.root / "home")}
    command = [sys.executable, "-c", DRIVER, world.url, mode]
    return subprocess.run(command, env=environment, timeout=60, check=False).returncode


@pytest.mark.parametrize(("when", "mode"), in_both_modes(UNDONE))
def test_a_driver_killed_before_the_decision_leaves_the_destination_as_it_was(
    world: World, when: str, mode: str
) -> None:
    assert drive(world, mode, UNDONE[when]) == -signal.SIGKILL
    assert world.visible() == OLD
    (recovered,) = world.recover()
    assert recovered.ended is JobPhase.FAILED
    assert world.visible() == OLD
    assert world.live() == world.keys()
    assert world.open_uploads() == []


@pytest.mark.parametrize(("when", "mode"), in_both_modes(PUBLISHED))
def test_a_driver_killed_after_the_decision_is_finished_by_recovery(
    world: World, when: str, mode: str
) -> None:
    assert drive(world, mode, PUBLISHED[when]) == -signal.SIGKILL
    (recovered,) = world.recover()
    assert recovered.ended is JobPhase.COMMITTED
    assert recovered.receipt is not None
    assert recovered.receipt.files == len(NEW)
    wanted = NEW if mode == "replace" else {**OLD, **NEW} | NEW
    seen = world.visible()
    if mode == "append":
        # Both jobs have a day=0/a.csv; their short ids distinguish the files.
        assert len(world.keys()) == len(NEW) + len(OLD)
        assert set(NEW) <= set(seen)
    else:
        assert seen == wanted
    assert world.live() == world.keys()
    assert world.open_uploads() == []
    assert world.recover() == []


def test_a_driver_that_is_run_again_after_a_kill_in_its_commit_finds_the_job_committed(world: World) -> None:
    assert drive(world, "append", "complete.complete.after=kill@3") == -signal.SIGKILL
    job = world.open_job("new", mode="append")
    assert job.job_id == "new-g1"
    assert job.receipt is not None
    assert job.receipt.files == len(NEW)
    with pytest.raises(ConflictError, match=r"takes no more data"):
        job.attempt("task-0")
    assert world.open_uploads() == []


def test_a_driver_that_is_run_again_after_a_kill_in_its_tasks_writes_each_row_once(world: World) -> None:
    assert drive(world, "append", "task-commit.create.before=kill@3") == -signal.SIGKILL
    assert drive(world, "append", "") == 0
    assert len(world.keys()) == len(NEW) + len(OLD)
    assert world.live() == world.keys()
    assert world.open_uploads() == []
