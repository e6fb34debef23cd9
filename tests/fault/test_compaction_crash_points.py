"""Crash a compaction at every storage call, kill it with -9 beside a writer, and compare the rows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from lockgate.storage_core.commit.records.phase import TERMINAL
from tests.conftest import Summarise
from tests.support.commit.destination import ManualClock, World
from tests.support.commit.snapshots import one_by_one, snapshots_of
from tests.support.compaction.tables import compacted, numbers, rows
from tests.support.soak import SOAK, rounds, sample

pytestmark = pytest.mark.fault

FILES = rounds(120, max(120, round(5_000 * SOAK)))
DECIDED = "decide.create.after=kill"
POINTS = (
    "task-write.get.after=kill@100",
    "task-write.begin.after=kill",
    "task-write.part.after=kill",
    "task-write.seal.after=kill@2",
    "task-commit.create.before=kill@3",
    "task-commit.create.after=kill",
    "turn.create.after=kill",
    "plan.create.before=kill",
    "decide.create.before=kill",
    DECIDED,
    "complete.complete.before=kill",
    "complete.complete.after=kill@2",
    "outcome.create.after=kill",
    "remove.delete.after=kill",
    f"remove.delete.after=kill@{FILES // 2}",
    "end.put.after=kill",
    "clean-up.delete_many.before=kill",
)
"""One in each step of a compaction, and some within long steps."""
RUN = "from lockgate.storage_core.cli.root_command import main; main()"
APPENDER = """
import sys
from lockgate import open_job
from tests.support.compaction.tables import numbers
for number in range(1_000_000, 2_000_000):
    with open_job(sys.argv[1], f"append-{number}") as job:
        with job.attempt("task") as attempt, attempt.open(f"day={number % 3}/a.parquet") as file:
            file.write(numbers(number))
        job.commit()
    print(number, flush=True)
"""


def small_files(world: World, count: int) -> None:
    """Publish so many small files in three partitions, by ten jobs."""
    for job in range(10):
        numbered = range(job, count, 10)
        world.run(
            f"job-{job}", {f"day={number % 3}/{number}.parquet": numbers(number) for number in numbered}
        )


def test_a_crash_of_a_compaction_at_any_storage_call_leaves_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, summarise: Summarise
) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)
    world = one_by_one(World(tmp_path / "first", str(tmp_path / "first" / "dest")))
    small_files(world, 30)
    before, files = rows(world), len(world.live())
    snapshots = snapshots_of(world, lambda: compacted(world, name="compaction"), tmp_path / "snapshots")
    outcomes: list[bool] = []
    for snapshot in sample(snapshots, 4):
        crashed = snapshot.world()
        where = snapshot.points[0]
        assert rows(crashed) == before, where
        crashed.run("meanwhile", {"day=1/new.parquet": numbers(10**6)})
        assert all(result.ended in TERMINAL for result in crashed.recover()), where
        after = sorted([*before, ("day=1", 10**6, f"row {10**6}")], key=repr)
        assert rows(crashed) == after, where
        assert crashed.live() == crashed.keys(), where
        assert crashed.open_uploads() == [], where
        outcomes += [len(crashed.live()) < files] * len(snapshot.points)
        if snapshot is snapshots[0] or snapshot is snapshots[-1]:
            compacted(crashed)
            assert rows(crashed) == after, where
    summarise(f"{len(outcomes)} crash points, {sum(outcomes)} published, rest undone")
    assert outcomes == sorted(outcomes)
    assert {False, True} == set(outcomes)


@contextmanager
def appending(world: World, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", APPENDER, world.url]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_compaction_that_is_killed_beside_a_writer_loses_and_doubles_no_row(
    tmp_path: Path, summarise: Summarise
) -> None:
    made = World(tmp_path / "made", str(tmp_path / "made" / "dest"), ManualClock(time.time()))
    small_files(made, FILES)
    [before] = snapshots_of(made, lambda: None, tmp_path / "before")
    counts = []
    for number, point in enumerate(sample(POINTS, len(POINTS))):
        world = replace(before.copy_to(tmp_path / str(number)), clock=ManualClock(time.time()))
        counts.append(killed_beside_a_writer(world, point))
    summarise(f"{FILES} files and (appended, live files) {counts} at {len(counts)} kills")


def killed_beside_a_writer(world: World, point: str) -> tuple[int, int]:
    """Kill a compaction at a point, end it by the next run; return the numbers of appends and live files."""
    environment = {
        **os.environ,
        "LOCKGATE_HOME": str(world.root / "home"),
        "LOCKGATE_JOURNAL_URL": "none",
    }
    command = [sys.executable, "-c", RUN, "compact", world.url, "--name", "compaction"]
    # Once it is decided, a job of the writer may end the compaction before this run does.
    killed = {-signal.SIGKILL} if POINTS.index(point) <= POINTS.index(DECIDED) else {0, -signal.SIGKILL}
    with appending(world, environment) as writer:
        assert writer.stdout is not None
        first = writer.stdout.readline()
        for failing, codes in ((point, killed), ("none=kill", {0})):
            done = subprocess.run(
                command,
                env={**environment, "LOCKGATE_FAILPOINTS": failing},
                capture_output=True,
                text=True,
                timeout=600,
                check=False,
            )
            assert done.returncode in codes, (point, done.stderr)
            found = [row[1] for row in rows(world)]
            assert len(found) == len(set(found)), point
            assert set(range(FILES)) <= set(found), point
        writer.kill()
        appended = [int(line) for line in (first, *writer.stdout)]
    assert all(result.ended in TERMINAL for result in world.recover())
    found = [row[1] for row in rows(world)]
    assert len(found) == len(set(found))
    assert {*range(FILES), *appended} <= set(found)
    # The writer may have been killed between a commit and its line.
    assert len(set(found) - {*range(FILES), *appended}) <= 1
    assert world.live() == world.keys()
    return len(appended), len(world.live())
