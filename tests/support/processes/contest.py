"""Concurrent drivers of one destination, some of them killed and retried, and the check of what they leave.

In a storm, drivers are also stopped for longer than their leases, and their clocks jump by an hour.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from random import Random
from typing import Final

from lockgate.storage_core.commit.destination.log import DestinationLog
from lockgate.storage_core.commit.job_summary import list_jobs
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.ids import split_job_id
from tests.support.commit.destination import World
from tests.support.commit.serial_order import EMPTY, State, after, serial_results
from tests.support.processes.drivers import (
    COMMITTED,
    KILLED,
    REFUSED,
    TRY_AGAIN,
    Death,
    JobOrder,
    Jump,
    Place,
    start_driver,
    start_recovery,
)

SHORT_LEASES: Final = {"lease_renew_s": 0.2, "lease_hard_s": 0.6, "commit_window_s": 0.4, "parallelism": 4}
CALLS: Final = 110
"""Approximate number of storage calls of a whole job: a death is equally likely at each, or after all."""
LIFE_S: Final = 0.5
TRIES: Final = 10
STOP_S: Final = 2.0
PATIENCE_S: Final = 60.0
HOUR_S: Final = 3600.0


def files(job: str, *days: int) -> dict[str, bytes]:
    return {f"day={day}/{job}.csv": f"{job} of day {day}".encode() for day in days}


BASE: Final = JobOrder("base", "append", files("base", 1, 2, 3))
CONTESTS: Final = {
    "replace + replace": [
        BASE,
        JobOrder("one", "replace", files("one", 1, 2)),
        JobOrder("two", "replace", files("two", 2, 3)),
    ],
    "replace + append": [
        BASE,
        JobOrder("one", "replace", files("one", 1, 2)),
        JobOrder("two", "append", files("two", 2, 3)),
    ],
    "append x 8": [BASE, *(JobOrder(f"job{n}", "append", files(f"job{n}", n)) for n in range(8))],
    "replace by partition + append": [
        BASE,
        JobOrder("one", "replace", files("one", 1, 2), scope="partitions"),
        JobOrder("two", "append", files("two", 2, 3)),
    ],
    "replace by partition + replace": [
        BASE,
        JobOrder("one", "replace", files("one", 1, 2), scope="partitions"),
        JobOrder("two", "replace", files("two", 2, 3)),
    ],
}


@dataclass
class Contest:
    """Concurrent drivers of one destination.

    Attributes:
        random: Selects the processes to kill and the time.
        leaves_some: Leave some killed jobs to recovery, and run recovery concurrently with the drivers.
        deaths: Number of drivers and recoveries that were killed.
        tries: Number of drivers that were started for each job.
        tries_at_most: A job that needs more fails the test.
    """

    place: Place
    random: Random
    leaves_some: bool
    deaths: int = 0
    tries: dict[str, int] = field(default_factory=dict)
    tries_at_most: int = TRIES
    _running: dict[ForkServerProcess, JobOrder | None] = field(default_factory=dict)

    def run(self, orders: Sequence[JobOrder]) -> dict[str, int]:
        """Run all drivers to their end and return the exit code of each job's last try."""
        for order in orders:
            self._start(order)
        ended: dict[str, int] = {}
        while self._running:
            for process, order in self._wait():
                code = process.exitcode
                self.deaths += code == KILLED
                assert code in {COMMITTED, KILLED, REFUSED, TRY_AGAIN}, (process.name, code)
                if order is not None and not self._retries(order, code):
                    ended[order.name] = code
        return ended

    def end(self) -> None:
        """Kill all remaining processes."""
        for process in self._running:
            process.kill()
            process.join()

    def _retries(self, order: JobOrder, code: int) -> bool:
        """Retry a job unless its end is known or it is left to recovery; return whether it was retried."""
        is_final = code == COMMITTED or (code == REFUSED and order.mode == "fail")
        if code == KILLED and self.leaves_some:
            if self.random.random() < 0.5:
                self._running[start_recovery(self.place, self._death(0.3), self._jump())] = None
            is_final = self.random.random() < 0.2
        if not is_final:
            self._start(order)
        return not is_final

    def _start(self, order: JobOrder) -> None:
        tried = self.tries[order.name] = self.tries.get(order.name, 0) + 1
        assert tried <= self.tries_at_most, f"{order.name} was tried {self.tries_at_most} times"
        self._running[start_driver(self.place, order, self._death(0.9 / tried), self._jump())] = order

    def _death(self, chance: float) -> Death | None:
        if self.random.random() >= chance:
            return None
        if self.random.random() < 0.7:
            return Death(at_call=self.random.randrange(CALLS))
        return Death(after_s=self.random.uniform(0.0, LIFE_S))

    def _jump(self) -> Jump | None:
        return None

    def _wait(self) -> Iterator[tuple[ForkServerProcess, JobOrder | None]]:
        by_sentinel = {process.sentinel: process for process in self._running}
        for sentinel in self._wait_for_some(list(by_sentinel)):
            process = by_sentinel[sentinel]  # type: ignore[index]  # a sentinel is a descriptor
            process.join()
            yield process, self._running.pop(process)

    def _wait_for_some(self, sentinels: list[int]) -> list[object]:
        ready: list[object] = list(wait(sentinels, timeout=PATIENCE_S))
        assert ready, f"no process ended: {[process.name for process in self._running]}"
        return ready


@dataclass
class Storm(Contest):
    """A contest whose drivers are also stopped, for longer than their leases, and whose clocks jump.

    Attributes:
        counts: Number of stops, and of jumps in each direction.
    """

    counts: Counter[str] = field(default_factory=Counter)
    _stopped_until_s: dict[ForkServerProcess, float] = field(default_factory=dict)

    def _jump(self) -> Jump | None:
        if self.random.random() < 0.6:
            return None
        direction = self.random.choice([-1, 1])
        self.counts["forward" if direction > 0 else "backward"] += 1
        return Jump(self.random.uniform(0.0, LIFE_S), direction * HOUR_S)

    def _wait_for_some(self, sentinels: list[int]) -> list[object]:
        ends_s = time.monotonic() + PATIENCE_S
        while True:
            ready: list[object] = list(wait(sentinels, timeout=0.05))
            self._continue_some()
            if ready:
                return ready
            assert time.monotonic() < ends_s, f"no process ended: {[one.name for one in self._running]}"
            if self.random.random() < 0.1:
                self._stop(self.random.choice(list(self._running)))

    def _stop(self, process: ForkServerProcess) -> None:
        if process not in self._stopped_until_s and _signal(process, signal.SIGSTOP):
            self._stopped_until_s[process] = time.monotonic() + self.random.uniform(0.0, STOP_S)
            self.counts["stops"] += 1

    def _continue_some(self) -> None:
        for process, until_s in list(self._stopped_until_s.items()):
            if time.monotonic() >= until_s:
                del self._stopped_until_s[process]
                _signal(process, signal.SIGCONT)


def _signal(process: ForkServerProcess, number: signal.Signals) -> bool:
    """Send a signal to a process that has not been joined; return whether it ran."""
    if not process.is_alive() or process.pid is None:
        return False
    os.kill(process.pid, number)
    return True


def check_log(world: World, orders: Sequence[JobOrder]) -> set[str]:
    """Check that the destination equals a serial execution of the committed jobs in the order of the log."""
    by_name = {order.name: order for order in orders}
    committed = [
        split_job_id(job.job_id)[0]
        for job in list_jobs(world.url, settings=world.settings, clock=world.clock)
        if job.phase is JobPhase.COMMITTED
    ]
    seen: State = frozenset(world.visible().items())
    assert seen in serial_results(by_name[name] for name in committed)

    outcomes = list(DestinationLog(world.store).outcomes())
    assert [outcome.turn for outcome in outcomes] == list(range(1, len(outcomes) + 1))
    published = [outcome for outcome in outcomes if outcome.verdict == "published"]
    turns = [split_job_id(outcome.job_id)[0] for outcome in published]
    assert sorted(turns) == sorted(committed)  # each file once
    expected: State | None = EMPTY
    for name in turns:
        expected = None if expected is None else after(expected, by_name[name])
    assert seen == expected
    if published:
        assert json.loads(world.store.get("_SUCCESS"))["turn"] == published[-1].turn
    return set(committed)
