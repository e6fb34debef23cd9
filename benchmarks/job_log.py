"""Measure what a job's event log costs: jobs of 100 tasks with and without it, in turn.

    python -m benchmarks.job_log [rounds] [tasks]

CPU time is that of the process, with the thread that writes the log, until its file is closed; that thread's
own CPU time is printed too. Wall time ends with the job's commit, which does not wait for the log.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

from lockgate import open_job
from lockgate.storage_core.event_log.event_queue import EventQueue, close_event_logs
from lockgate.storage_core.settings import load_settings

ROUNDS: Final = 10
TASKS: Final = 100
FRESH_ROUNDS: Final = 5


class Cost(NamedTuple):
    """What one job cost, in seconds."""

    cpu_s: float
    wall_s: float


def run_job(home: Path, name: str, tasks: int, *, is_logged: bool) -> Cost:
    """Commit a job of many tasks with one small file each."""
    settings = load_settings(home=home, job_log=is_logged)
    cpu_s, began_s = time.process_time(), time.monotonic()
    with open_job(str(home / "lake"), name, settings=settings) as job:
        for number in range(tasks):
            with job.attempt(f"part-{number}") as attempt, attempt.open(f"part-{number}.csv") as file:
                file.write(b"a,b\n")
        job.commit()
    wall_s = time.monotonic() - began_s
    close_event_logs(60.0)
    return Cost(time.process_time() - cpu_s, wall_s)


def fresh_process(home: Path, name: str, tasks: int, *, is_logged: bool) -> Cost:
    """Run one job in a process of its own; the costs contain its start and its imports."""
    before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    command = [sys.executable, "-m", "benchmarks.job_log", "--job", str(home), name, str(tasks)]
    environment = {**os.environ, "LOCKGATE_JOB_LOG": str(is_logged)}
    subprocess.run(command, check=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(cpu_s, time.monotonic() - began_s)


def timed_thread() -> list[float]:
    """Return a list that receives the CPU time of each thread that writes logs, at its end."""
    run, seconds = EventQueue._run, list[float]()  # noqa: SLF001 - measured from inside

    def timed(logs: EventQueue) -> None:
        run(logs)
        seconds.append(time.thread_time())

    EventQueue._run = timed  # type: ignore[method-assign]  # noqa: SLF001
    return seconds


def report(title: str, without: list[Cost], with_log: list[Cost]) -> None:
    """Print the medians, and the median of the ratios of neighbours."""
    print(title)
    for field in Cost._fields:
        a, b = [getattr(one, field) for one in without], [getattr(one, field) for one in with_log]
        ratio = statistics.median(with_ / without_ for without_, with_ in zip(a, b, strict=True))
        print(
            f"  {field:<7} without {statistics.median(a):.3f}, with {statistics.median(b):.3f}, "
            f"median of ratios {ratio:.3f}"
        )


def main() -> None:
    """Measure and print."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    tasks = int(sys.argv[2]) if len(sys.argv) > 2 else TASKS
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        home = Path(folder)
        for is_logged in (False, True):
            run_job(home, f"warm-{is_logged}", tasks, is_logged=is_logged)
        costs: dict[bool, list[Cost]] = {False: [], True: []}
        thread_s = timed_thread()
        for number in range(rounds):
            for is_logged in (False, True):
                costs[is_logged].append(run_job(home, f"{number}-{is_logged}", tasks, is_logged=is_logged))
        report(
            f"{tasks} tasks, in a process that has committed jobs before, {rounds} times each",
            costs[False],
            costs[True],
        )
        print(f"  of it the log's thread {statistics.median(thread_s):.3f}")
        fresh: dict[bool, list[Cost]] = {False: [], True: []}
        for number in range(FRESH_ROUNDS):
            for is_logged in (False, True):
                fresh[is_logged].append(
                    fresh_process(home, f"f{number}-{is_logged}", tasks, is_logged=is_logged)
                )
        report(f"{tasks} tasks, in a new process, {FRESH_ROUNDS} times each", fresh[False], fresh[True])
        print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--job"]:
        run_job(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), is_logged=load_settings().job_log)
    else:
        main()
