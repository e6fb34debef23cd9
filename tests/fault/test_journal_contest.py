"""Ten drivers share one journal and a few destinations; three of them are killed with -9 repeatedly.

New jobs are started for 60 s, times `LOCKGATE_TEST_SOAK`.
"""

from __future__ import annotations

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
from lockgate.storage_core.commit.leases.registration import PHASES
from lockgate.storage_core.commit.records.phase import TERMINAL, JobPhase
from lockgate.storage_core.commit.recovery.registry_rebuild import rescan
from lockgate.storage_core.commit.recovery.upload_sweep import sweep_uploads
from lockgate.storage_core.commit.registry.queries import jobs
from lockgate.storage_core.ids import split_job_id
from lockgate.storage_core.journal import open_journal
from tests.conftest import Summarise
from tests.support.commit.destination import ManualClock, World
from tests.support.commit.serial_order import EMPTY, State, after
from tests.support.journal.lease_states import lease_states
from tests.support.postgres import Server
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
from tests.support.soak import SOAK

pytestmark = [pytest.mark.soak, pytest.mark.fault]

SECONDS: Final = 60 * SOAK
DRIVERS: Final = 10
MORTALS: Final = 3
"""Number of drivers that are killed."""
DESTINATIONS: Final = 3
DAYS: Final = 4
LEASES: Final = {"lease_renew_s": 0.5, "lease_soft_s": 1.0, "lease_hard_s": 3.0, "commit_window_s": 2.0}
"""Short limits, so that killed jobs are recovered while the other drivers run."""
CALLS: Final = 110
"""Approximate number of storage calls of a whole job."""
PATIENCE_S: Final = 200.0


@dataclass(frozen=True)
class Seat:
    """A participant: a driver that runs one job after the other, or a recovery of one destination."""

    number: int
    is_recovery: bool = False

    @property
    def is_mortal(self) -> bool:
        return self.number < MORTALS


@dataclass
class Contest:
    """The participants and the jobs that were started.

    Attributes:
        orders: Destination of every job that was started, by job name.
        confirmed: Jobs whose drivers received the confirmation of their commit.
        deaths: Number of drivers and recoveries that were killed.
        given_up: Jobs whose driver was killed and not replaced: recovery ends them.
    """

    places: Sequence[Place]
    random: Random
    ends_s: float
    orders: dict[str, tuple[Place, JobOrder]] = field(default_factory=dict)
    confirmed: set[str] = field(default_factory=set)
    deaths: int = 0
    tries: int = 0
    recoveries: int = 0
    given_up: int = 0
    _running: dict[ForkServerProcess, tuple[Seat, str]] = field(default_factory=dict)

    def run(self) -> None:
        """Run all participants until the time is over, then let running jobs finish."""
        for number in range(DRIVERS):
            self._begin(Seat(number))
        for number in range(len(self.places)):
            self._recover(Seat(number, is_recovery=True))
        while self._running:
            for process in self._ended():
                seat, name = self._running.pop(process)
                code = process.exitcode
                self.deaths += code == KILLED
                # A driver is refused if it continues after recovery has decided its job.
                assert code in {COMMITTED, KILLED, REFUSED, TRY_AGAIN}, (process.name, code)
                if seat.is_recovery:
                    self._recover(seat)
                else:
                    self._go_on(seat, name, code)

    def end(self) -> None:
        """Kill all remaining processes."""
        for process in self._running:
            process.kill()
            process.join()

    @property
    def _is_over(self) -> bool:
        """Return whether the time is over and enough processes have died, also on a slow machine."""
        return time.monotonic() >= self.ends_s and self.deaths >= MORTALS

    def _go_on(self, seat: Seat, name: str, code: int) -> None:
        if code == COMMITTED:
            self.confirmed.add(name)
            self._begin(seat)
        elif code == KILLED and self.random.random() < 0.3:
            self.given_up += 1
            self._begin(seat)
        else:
            self._try(seat, name)

    def _begin(self, seat: Seat) -> None:
        """Start a new job unless the time is over."""
        if self._is_over:
            return
        name = f"job{len(self.orders)}"
        days = self.random.sample(range(DAYS), self.random.randint(1, 2))
        files = {f"day={day}/{name}.csv": f"{name} of day {day}".encode() for day in days}
        if self.random.random() < 0.3:
            order = JobOrder(name, "replace", files, scope="partitions")
        else:
            order = JobOrder(name, "append", files)
        self.orders[name] = (self.random.choice(self.places), order)
        self._try(seat, name)

    def _try(self, seat: Seat, name: str) -> None:
        self.tries += 1
        place, order = self.orders[name]
        death = self._death() if seat.is_mortal and self.random.random() < 0.6 else None
        self._running[start_driver(place, order, death)] = (seat, name)

    def _recover(self, seat: Seat) -> None:
        """Start another recovery of one destination, like a scheduled one."""
        if not self._is_over:
            self.recoveries += 1
            death = self._death() if self.random.random() < 0.2 else None
            self._running[start_recovery(self.places[seat.number], death)] = (seat, "")

    def _death(self) -> Death:
        if self.random.random() < 0.7:
            return Death(at_call=self.random.randrange(CALLS))
        return Death(after_s=self.random.uniform(0.0, 2.0))

    def _ended(self) -> Iterator[ForkServerProcess]:
        by_sentinel = {process.sentinel: process for process in self._running}
        ready = wait(list(by_sentinel), timeout=PATIENCE_S)
        assert ready, f"no process ended: {[process.name for process in self._running]}"
        for sentinel in ready:
            process = by_sentinel[sentinel]  # type: ignore[index]  # a sentinel is a descriptor
            process.join()
            yield process


@pytest.fixture
def worlds(tmp_path: Path, postgres: Server) -> list[World]:
    """Return destinations that share a journal."""
    options = {**LEASES, "journal_url": postgres.new_database("contest")}
    clock = ManualClock(time.time())
    return [World(tmp_path, str(tmp_path / f"dest{n}"), clock, options) for n in range(DESTINATIONS)]


@pytest.mark.requires("postgres")
@pytest.mark.timeout(SECONDS + 3 * PATIENCE_S)
def test_every_job_ends_once_when_three_of_ten_drivers_are_killed(
    worlds: list[World], summarise: Summarise
) -> None:
    settings = {**worlds[0].options, "home": worlds[0].root / "home", "parallelism": 4}
    places = [Place(world.url, settings) for world in worlds]
    contest = Contest(places, Random("ten drivers"), time.monotonic() + SECONDS)
    try:
        contest.run()
    finally:
        contest.end()

    committed: set[str] = set()
    failed = 0
    for world in worlds:
        world.clock.now = max(world.clock.now, time.time())
        assert [result for result in world.recover() if result.ended not in TERMINAL] == []
        assert world.recover() == []
        here = {name: order for name, (place, order) in contest.orders.items() if place.url == world.url}
        committed |= check_destination(world, here)
        failed += check_registry(world)
    check_journal(worlds[0])
    assert contest.confirmed <= committed
    summarise(
        f"{len(contest.orders)} jobs in {SECONDS:g} s and {contest.tries} tries, {contest.deaths} killed, "
        f"{contest.given_up} left to {contest.recoveries} recoveries; {len(committed)} committed, "
        f"{failed} generations aborted"
    )


def check_destination(world: World, orders: dict[str, JobOrder]) -> set[str]:
    """Check that the rows are those of the committed jobs in log order, each once; return the job names."""
    committed = [
        split_job_id(job.job_id)[0]
        for job in list_jobs(world.url, settings=world.settings, clock=world.clock)
        if job.phase is JobPhase.COMMITTED
    ]
    published = [
        outcome for outcome in DestinationLog(world.store).outcomes() if outcome.verdict == "published"
    ]
    turns = [split_job_id(outcome.job_id)[0] for outcome in published]
    assert sorted(turns) == sorted(set(committed)) == sorted(committed)
    expected: State | None = EMPTY
    for name in turns:
        expected = None if expected is None else after(expected, orders[name])
    assert frozenset(world.visible().items()) == expected
    assert world.live() == world.keys()
    assert len(world.keys()) == len(world.visible())
    # A process that dies while probing a new destination leaves an upload without an owner for two sweeps.
    assert [key for key in world.open_uploads() if not key.startswith("_lockgate/probe/")] == []
    for _ in range(2):
        sweep_uploads(world.url, dry_run=False, settings=world.settings, clock=world.clock)
        world.clock.sleep(world.settings.orphan_age_s)
    assert world.open_uploads() == []
    return set(committed)


def check_registry(world: World) -> int:
    """Check that the registry agrees with the store after a rescan; return the number of failed jobs."""
    for result in rescan(world.url, settings=world.settings, clock=world.clock):
        assert result.action != "leave alone"
    stored = {
        job.job_id: PHASES[job.phase]
        for job in list_jobs(world.url, settings=world.settings, clock=world.clock)
    }
    with open_journal(str(world.options["journal_url"])) as journal, journal.reading() as reading:
        assert {job.job_id: job.phase for job in jobs(reading, world.store.url)} == stored
    assert set(stored.values()) <= {"committed", "failed"}
    return sum(phase == "failed" for phase in stored.values())


def check_journal(world: World) -> None:
    """Check that sequence numbers have no gaps and that no ended job has a lease."""
    with open_journal(str(world.options["journal_url"])) as journal:
        with journal.reading() as reading:
            sequences = [entry.sequence for entry in reading.entries(0, 1_000_000)]
        assert sequences == list(range(1, journal.status().stamp.sequence + 1))
        assert lease_states(journal) == {}
