"""A driver is stopped for longer than its hard limit and continues while its successor runs.

The test uses real processes, SIGSTOP and SIGCONT. It does not wait for a fixed time: the stop lasts until
the journal shows the lease as lapsed.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import psycopg
import pytest
from msgspec import structs

from lockgate.storage_core.clock import SystemClock
from lockgate.storage_core.commit.job_summary import list_jobs
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.commit.recovery.recover import recover_job
from lockgate.storage_core.journal import Journal, Leases, LeaseState, open_journal
from lockgate.storage_core.journal.entries.lease_entries import Lease
from tests.support.commit.destination import World, write
from tests.support.processes.paused_driver import COMMITTED, PATIENCE_S, READY, Order, PausedDriver

pytestmark = pytest.mark.fault

SHORT: Final = {"lease_renew_s": 0.2, "lease_soft_s": 1.0, "lease_hard_s": 2.0, "commit_window_s": 1.0}
"""Limits of the paused driver; its successor has the common limits.

As by default, the commit window is shorter than the hard limit: a driver that slept longer checks the journal
again.
"""
SLEEPER: Final = {"day=1/a.csv": b"of the sleeper"}
SUCCESSOR: Final = {"day=1/a.csv": b"of the successor"}


@pytest.fixture
def world(tmp_path: Path, journal_url: str) -> World:
    return World(tmp_path, str(tmp_path / "dest"), SystemClock(), {"journal_url": journal_url})


@pytest.fixture
def journal(journal_url: str) -> Iterator[Journal]:
    with open_journal(journal_url) as opened:
        yield opened


class Scene:
    """A driver that sleeps longer than its hard limit, and its surroundings."""

    def __init__(self, world: World, journal: Journal) -> None:
        self.world = world
        self.journal = journal
        self._drivers: list[PausedDriver] = []

    def put_to_sleep(self, pauses_at: str) -> PausedDriver:
        """Stop a driver that holds its lease, and wait until the lease has lapsed.

        If the machine stalls for two seconds, a running driver loses its lease; then another one is started.
        """
        order = Order(
            self.world.url, "etl", SLEEPER, structs.replace(self.world.settings, **SHORT), pauses_at
        )
        while True:
            driver = PausedDriver(order)
            self._drivers.append(driver)
            if driver.next_line() != READY:
                continue
            self._stop(driver)
            if self._lease_state() is not LeaseState.HARD:
                break
        wait_until(lambda: self._lease_state() is LeaseState.HARD)
        return driver

    def wake(self, driver: PausedDriver) -> str:
        """Continue the driver and return its last line."""
        driver.resume()
        os.kill(driver.pid, signal.SIGCONT)
        return driver.next_line()

    def end(self) -> None:
        for driver in self._drivers:
            driver.end()

    def _stop(self, driver: PausedDriver) -> None:
        """Stop the driver outside a transaction: within one it would block all other processes."""
        while True:
            os.kill(driver.pid, signal.SIGSTOP)
            if is_free(self.journal):
                return
            os.kill(driver.pid, signal.SIGCONT)

    def _lease_state(self) -> LeaseState | None:
        with self.journal.reading() as reading:
            (lease,) = reading.where(Lease, {})
        view = Leases(self.journal).look(lease.resource)
        return None if view is None else view.state


@pytest.fixture
def scene(world: World, journal: Journal) -> Iterator[Scene]:
    made = Scene(world, journal)
    try:
        yield made
    finally:
        made.end()


def is_free(journal: Journal) -> bool:
    """Return whether no process has an open transaction in the journal's database."""
    url = journal.database.url
    if journal.database.is_sqlite:
        with closing(sqlite3.connect(url.database or "", timeout=0.05, isolation_level=None)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return False
            return True
    plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
    others = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND xact_start IS NOT NULL AND pid <> pg_backend_pid()"
    )
    with psycopg.connect(plain, autocommit=True) as connection:
        return connection.execute(others).fetchone() == (0,)


def wait_until(is_so: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < ends_s
        time.sleep(0.02)


def check_rows(world: World) -> None:
    """Check that the successor's rows are visible exactly once and no rows of the sleeper."""
    assert world.visible() == SUCCESSOR
    assert world.live() == world.keys()
    assert world.open_uploads() == []


@pytest.mark.parametrize("pauses_at", ["task", "commit"])
def test_a_driver_that_wakes_up_beside_its_successor_is_fenced(scene: Scene, pauses_at: str) -> None:
    sleeper = scene.put_to_sleep(pauses_at)
    with scene.world.open_job("etl") as job:
        write(job, "task-0", SUCCESSOR)
        assert scene.wake(sleeper) == "FencedError"
        assert job.phase() is JobPhase.OPEN
        job.commit()
    check_rows(scene.world)


def test_a_driver_that_slept_before_its_decision_finds_its_successors_decision(
    scene: Scene,
) -> None:
    sleeper = scene.put_to_sleep("decide.create.before")
    with scene.world.open_job("etl") as job:
        write(job, "task-0", SUCCESSOR)
        receipt = job.commit()
    assert scene.wake(sleeper) == COMMITTED  # the successor's decision has committed the job
    assert scene.world.attach(job.job_id).receipt == receipt
    check_rows(scene.world)


@pytest.mark.parametrize("pauses_at", ["commit", "decide.create.before"])
def test_a_driver_that_wakes_up_after_its_job_was_recovered_publishes_nothing(
    scene: Scene, pauses_at: str
) -> None:
    sleeper = scene.put_to_sleep(pauses_at)
    (summary,) = list_jobs(scene.world.url, settings=scene.world.settings)
    recovered = recover_job(scene.world.url, summary.job_id, settings=scene.world.settings)
    assert recovered.ended is JobPhase.FAILED
    scene.world.run("etl", SUCCESSOR)
    assert scene.wake(sleeper) == "JobFailedError"
    check_rows(scene.world)
