"""Three drivers and a recovery, behind a proxy that injects faults before a real S3 server."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from lockgate.storage_core.commit.job_summary import list_jobs
from lockgate.storage_core.commit.records.phase import TERMINAL, JobPhase
from lockgate.storage_core.commit.recovery.upload_sweep import sweep_uploads
from lockgate.storage_core.errors import JobFailedError, OutcomeUnknownError, StoreUnavailableError
from lockgate.storage_core.ids import split_job_id
from tests.conftest import Summarise
from tests.support.commit.destination import ManualClock, World
from tests.support.s3.faulty_proxy import FaultyProxy, faulty_proxy
from tests.support.soak import rounds

pytestmark = [pytest.mark.fault, pytest.mark.integration, pytest.mark.requires("s3-server")]

DRIVERS = 3
JOBS = rounds(2, 20)
FILES = 3
RATE = 0.12


@pytest.fixture
def proxy() -> Iterator[FaultyProxy]:
    with faulty_proxy(os.environ["LOCKGATE_TEST_S3_ENDPOINT"], RATE) as proxy:
        yield proxy


@pytest.fixture
def world(proxy: FaultyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Return a destination on the real S3 server, seen through the proxy."""
    for variable in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", os.environ["LOCKGATE_TEST_S3_KEY"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", os.environ["LOCKGATE_TEST_S3_SECRET"])
    url = f"{os.environ['LOCKGATE_TEST_S3_URL']}/proxy-{secrets.token_hex(8)}"
    options = {"s3_endpoint_url": proxy.endpoint, "s3_region": "us-east-1"}
    return World(tmp_path, url, ManualClock(time.time()), options)


def files(name: str) -> dict[str, bytes]:
    return {f"{name}-{number}.csv": f"{number} of {name}".encode() for number in range(FILES)}


def drive(world: World, driver: int) -> set[str]:
    """Run jobs one after the other; return the names of those whose commit returned.

    Each driver's clock goes on with its own retries, and nothing renews a claim. So in a long run a driver
    may take another for dead, and revert its job.
    """
    committed = set()
    for number in range(JOBS):
        name = f"job-{driver}-{number}"
        with suppress(OutcomeUnknownError, StoreUnavailableError, JobFailedError):
            world.run(name, files(name), mode="append")
            committed.add(name)
    return committed


def recover(world: World) -> None:
    """Recover until nothing is left to recover, as a scheduled recovery does."""
    for _ in range(20):
        with suppress(OutcomeUnknownError, StoreUnavailableError):
            ended = all(result.ended in TERMINAL for result in world.recover())
            # A driver that died before its job was known left uploads that only the sweep finds.
            sweep_uploads(world.url, dry_run=False, settings=world.settings, clock=world.clock)
            if ended and not world.open_uploads():
                return
    raise AssertionError("something is left after 20 recoveries")


def test_every_row_arrives_once_or_not_at_all_and_no_upload_is_left(
    world: World, proxy: FaultyProxy, summarise: Summarise
) -> None:
    with ThreadPoolExecutor(DRIVERS) as threads:
        worlds = [world.elsewhere() for _ in range(DRIVERS)]
        committed = set().union(*threads.map(drive, worlds, range(DRIVERS)))
    recover(world)

    direct = replace(
        world, options={**world.options, "s3_endpoint_url": os.environ["LOCKGATE_TEST_S3_ENDPOINT"]}
    )
    jobs = {split_job_id(job.job_id)[0]: job.phase for job in list_jobs(world.url, settings=direct.settings)}
    published = {name for name, phase in jobs.items() if phase is JobPhase.COMMITTED}
    expected = {path: data for name in published for path, data in files(name).items()}
    summarise(
        f"{len(published)} of {DRIVERS * JOBS} jobs committed, "
        f"{len(published - committed)} of them after an unknown outcome; {dict(proxy.counts)}"
    )
    assert committed <= published
    assert direct.visible() == expected
    assert len(direct.live()) == len(expected)
    assert set(jobs.values()) <= TERMINAL
    assert direct.open_uploads() == []
    assert len(published) > DRIVERS * JOBS // 2
