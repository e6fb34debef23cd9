"""Concurrent jobs at one destination, in every pair of modes, some of them killed with -9 and retried.

The jobs are real processes. Their result equals that of some serial order of the committed jobs. A seed
selects the killed processes and the points of their deaths, but not the scheduling by this machine: each
run of a test is another schedule.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final

import pytest

from lockgate.storage_core.commit.records.phase import TERMINAL
from lockgate.storage_core.commit.recovery.upload_sweep import sweep_uploads
from tests.support.commit.destination import ManualClock, World
from tests.support.processes.contest import BASE, CONTESTS, SHORT_LEASES, Contest, check_log, files
from tests.support.processes.drivers import COMMITTED, REFUSED, JobOrder, Place
from tests.support.soak import rounds

pytestmark = pytest.mark.fault


FAIL_AND_FAIL: Final = [
    JobOrder("one", "fail", files("one", 1, 2)),
    JobOrder("two", "fail", files("two", 2, 3)),
]


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
@pytest.mark.soak
def test_on_s3_concurrent_jobs_leave_what_some_serial_order_leaves(s3: World, name: str) -> None:
    run_contest(s3, name, seed=0)


@pytest.mark.integration
@pytest.mark.requires("s3-server")
def test_on_s3_exactly_one_of_two_jobs_that_require_an_empty_destination_commits(s3: World) -> None:
    assert len(contest(s3, FAIL_AND_FAIL, "fail + fail on S3", leaves_some=False)) == 1
