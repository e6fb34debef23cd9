"""Concurrent jobs at one destination, in every pair of modes, some of them killed with -9 and retried.

The jobs are real processes. Their result equals that of some serial order of the committed jobs. A seed
selects the killed processes and the points of their deaths, but not the scheduling by this machine: each
run of a test is another schedule.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from random import Random
from typing import Final

import pytest

from lockgate.storage_core.commit.destination.log import DestinationLog
from lockgate.storage_core.commit.job_summary import list_jobs
from lockgate.storage_core.commit.records.phase import TERMINAL, JobPhase
from lockgate.storage_core.commit.recovery.upload_sweep import sweep_uploads
from lockgate.storage_core.ids import split_job_id
from tests.support.commit.destination import ManualClock, World
from tests.support.commit.serial_order import EMPTY, State, after, serial_results
from tests.support.processes.drivers import (
    COMMITTED,
    KILLED,
    REFUSED,
    TRY_AGAIN,
    Death,
    JobOrder,
    Place,
    start_driver,
    start_recovery,
)
from tests.support.soak import rounds

pytestmark = pytest.mark.fault

SHORT_LEASES: Final = {"lease_renew_s": 0.2, "lease_hard_s": 0.6, "commit_window_s": 0.4, "parallelism": 4}
CALLS: Final = 110
"""Approximate number of storage calls of a whole job: a death is equally likely at each, or after all."""
LIFE_S: Final = 0.5
TRIES: Final = 10


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
FAIL_AND_FAIL: Final = [
    JobOrder("one", "fail", files("one", 1, 2)),
    JobOrder("two", "fail", files("two", 2, 3)),
]


@dataclass
class Contest:
    """Concurrent drivers of one destination.

    Attributes:
        random: Selects the processes to kill and the time.
        leaves_some: Leave some killed jobs to recovery, and run recovery concurrently with the drivers.
        deaths: Number of drivers and recoveries that were killed.
    """

    place: Place
    random: Random
    leaves_some: bool
    deaths: int = 0
    tries: dict[str, int] = field(default_factory=dict)
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
                self._running[start_recovery(self.place, self._death(0.3))] = None
            is_final = self.random.random() < 0.2
        if not is_final:
            self._start(order)
        return not is_final

    def _start(self, order: JobOrder) -> None:
        tried = self.tries[order.name] = self.tries.get(order.name, 0) + 1
        assert tried <= TRIES, f"{order.name} was tried {TRIES} times"
        self._running[start_driver(self.place, order, self._death(0.9 / tried))] = order

    def _death(self, chance: float) -> Death | None:
        if self.random.random() >= chance:
            return None
        if self.random.random() < 0.7:
            return Death(at_call=self.random.randrange(CALLS))
        return Death(after_s=self.random.uniform(0.0, LIFE_S))

    def _wait(self) -> Iterator[tuple[ForkServerProcess, JobOrder | None]]:
        by_sentinel = {process.sentinel: process for process in self._running}
        ready = wait(list(by_sentinel), timeout=60)
        assert ready, f"no process ended: {[process.name for process in self._running]}"
        for sentinel in ready:
            process = by_sentinel[sentinel]  # type: ignore[index]  # a sentinel is a descriptor
            process.join()
            yield process, self._running.pop(process)


def contest(world: World, orders: Sequence[JobOrder], seed: str, *, leaves_some: bool) -> set[str]:
    """Run drivers concurrently, recover, and compare with serial orders; return the committed jobs."""
    settings = {"home": world.root / "home", **world.options}
    environment = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    running = Contest(Place(world.url, settings, environment), Random(seed), leaves_some)
    try:
        exit_codes = running.run(orders)
    finally:
        running.end()
    recovered = world.recover()
    assert [result for result in recovered if result.ended not in TERMINAL] == []
    assert world.recover() == []
    # A process that dies while probing a new destination leaves an upload without an owner for two sweeps.
    assert [key for key in world.open_uploads() if not key.startswith("_lockgate/probe/")] == []
    for _ in range(2):
        sweep_uploads(world.url, dry_run=False, settings=world.settings, clock=world.clock)
        world.clock.sleep(world.settings.orphan_age_s)
    assert world.open_uploads() == []
    assert world.live() == world.keys()
    committed = check_log(world, [BASE, *orders] if orders[0] != BASE else orders)
    assert {name for name, code in exit_codes.items() if code == COMMITTED} <= committed
    assert {name for name, code in exit_codes.items() if code == REFUSED}.isdisjoint(committed)
    print(f"seed '{seed}': {running.deaths} killed, tries {running.tries}, committed {sorted(committed)}")
    return committed


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


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, str(tmp_path / "dest"), ManualClock(time.time()), SHORT_LEASES)


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Return a destination on the real S3 server."""
    for variable in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", os.environ["LOCKGATE_TEST_S3_KEY"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", os.environ["LOCKGATE_TEST_S3_SECRET"])
    url = f"{os.environ['LOCKGATE_TEST_S3_URL']}/concurrent-{secrets.token_hex(8)}"
    endpoint = {"s3_endpoint_url": os.environ["LOCKGATE_TEST_S3_ENDPOINT"], "s3_region": "us-east-1"}
    return World(tmp_path, url, ManualClock(time.time()), {**SHORT_LEASES, **endpoint})


def run_contest(world: World, name: str, seed: int) -> None:
    base, *orders = CONTESTS[name]
    world.run(base.name, base.files, mode=base.mode)
    assert base.name in contest(world, orders, f"{name}, {seed}", leaves_some=True)


@pytest.mark.parametrize("seed", range(rounds(1, 20)))
@pytest.mark.parametrize("name", CONTESTS)
def test_concurrent_jobs_leave_what_some_serial_order_leaves(world: World, name: str, seed: int) -> None:
    run_contest(world, name, seed)


@pytest.mark.parametrize("seed", range(rounds(2, 20)))
def test_exactly_one_of_two_jobs_that_require_an_empty_destination_commits(world: World, seed: int) -> None:
    assert len(contest(world, FAIL_AND_FAIL, f"fail + fail, {seed}", leaves_some=False)) == 1


@pytest.mark.integration
@pytest.mark.requires("s3-server")
@pytest.mark.parametrize("name", ["replace + replace", "replace by partition + append"])
def test_on_s3_concurrent_jobs_leave_what_some_serial_order_leaves(s3: World, name: str) -> None:
    run_contest(s3, name, seed=0)


@pytest.mark.integration
@pytest.mark.requires("s3-server")
def test_on_s3_exactly_one_of_two_jobs_that_require_an_empty_destination_commits(s3: World) -> None:
    assert len(contest(s3, FAIL_AND_FAIL, "fail + fail on S3", leaves_some=False)) == 1
