"""Drivers in separate processes, forked from one that has imported everything: cheap enough to kill many.

A driver can be killed by SIGKILL at a failpoint, at its n-th storage call, or after a given time.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from typing import Final

from lockgate.storage_core.clock import SystemClock
from lockgate.storage_core.commit.open_or_attach import open_job
from lockgate.storage_core.commit.records.job_record import Mode, ScopeName
from lockgate.storage_core.commit.recovery.recover import recover_all
from lockgate.storage_core.errors import ConflictError, LockgateError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.settings import Settings, load_settings
from tests.support.commit.destination import write

# The server has no threads and no S3 clients, so a fork of it is a process like a new one.
PROCESSES: Final = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    [
        "pytest",
        "tests.support.processes.drivers",
        "tests.fault.test_file_storm",
        "lockgate.storage_core.stores.s3.store",
        "lockgate.storage_core.journal.database.postgresql_engine",  # other users may not read Python's files
        "psycopg",
        "encodings.idna",
    ]
)

COMMITTED: Final = 0
KILLED: Final = -signal.SIGKILL
REFUSED: Final = 3
"""The destination, or the job, does not allow it."""
TRY_AGAIN: Final = 4
"""Any other error of Lockgate: Airflow retries the task."""


@dataclass(frozen=True)
class Death:
    """The moment at which a driver is killed.

    Attributes:
        at_point: At the n-th passage of a failpoint, as in `remove.delete.after@2`.
        at_call: Before its n-th storage call, from 0.
        after_s: Seconds after its start.
    """

    at_point: str | None = None
    at_call: int | None = None
    after_s: float | None = None


@dataclass(frozen=True)
class Jump:
    """A jump of the clock that a driver reads.

    Attributes:
        after_s: Seconds after its start.
        by_s: Seconds that it gains; it loses them if negative.
    """

    after_s: float
    by_s: float


class JumpingClock(SystemClock):
    """The machine's clock, with a jump."""

    def __init__(self, jump: Jump) -> None:
        self._jumps_at_s = time.monotonic() + jump.after_s
        self._by_s = jump.by_s

    def now_s(self) -> float:
        """Return seconds since the epoch, as far as this clock knows."""
        return time.time() + (self._by_s if time.monotonic() >= self._jumps_at_s else 0.0)


@dataclass(frozen=True)
class JobOrder:
    """The files of one driver, one task per file; the same for every attempt."""

    name: str
    mode: Mode
    files: Mapping[str, bytes]
    scope: ScopeName = "destination"


@dataclass(frozen=True)
class Place:
    """Destination, settings and environment of drivers."""

    url: str
    settings: Mapping[str, object]
    environment: Mapping[str, str] = field(default_factory=dict)


def start_driver(
    place: Place, order: JobOrder, death: Death | None = None, jump: Jump | None = None
) -> ForkServerProcess:
    """Start a driver; its exit code is one of this module's, 1 for an error that is not Lockgate's."""
    process = PROCESSES.Process(target=_drive, args=(place, order, death, jump), name=order.name)
    process.start()
    return process


def start_recovery(place: Place, death: Death | None = None, jump: Jump | None = None) -> ForkServerProcess:
    """Start a process that recovers every job once."""
    process = PROCESSES.Process(target=_recover, args=(place, death, jump), name="recovery")
    process.start()
    return process


def _drive(place: Place, order: JobOrder, death: Death | None, jump: Jump | None) -> None:
    settings = _begin(place, death)
    try:
        # A replay of a committed job finds it, whatever killed its driver.
        with open_job(
            place.url,
            order.name,
            mode=order.mode,
            scope=order.scope,
            rerun="once",
            settings=settings,
            clock=clock_of(jump),
        ) as job:
            if job.receipt is None:
                for number, (path, data) in enumerate(order.files.items()):
                    write(job, f"task-{number}", {path: data})
                job.commit()
    except ConflictError:
        sys.exit(REFUSED)
    except LockgateError:
        sys.exit(TRY_AGAIN)


def _recover(place: Place, death: Death | None, jump: Jump | None) -> None:
    settings = _begin(place, death)
    try:
        for _ in recover_all(place.url, settings=settings, clock=clock_of(jump)):
            pass
    except LockgateError:
        sys.exit(TRY_AGAIN)


def clock_of(jump: Jump | None) -> SystemClock:
    return SystemClock() if jump is None else JumpingClock(jump)


def _begin(place: Place, death: Death | None) -> Settings:
    os.environ.update(place.environment)
    death = death or Death()
    if death.at_call is not None:
        _die_at_call(death.at_call)
    if death.after_s is not None:
        timer = threading.Timer(death.after_s, os.kill, (os.getpid(), signal.SIGKILL))
        timer.daemon = True
        timer.start()
    point, _, passage = (death.at_point or "").partition("@")
    failpoints = f"{point}=kill@{passage or 1}" if point else ""
    return load_settings(failpoints=failpoints, **place.settings)  # type: ignore[arg-type]


def _die_at_call(number: int) -> None:
    passed = 0
    counting = threading.Lock()

    def observe(point: str) -> None:
        nonlocal passed
        if not point.endswith(".before"):
            return
        with counting:
            if passed == number:
                os.kill(os.getpid(), signal.SIGKILL)
            passed += 1

    FAILPOINTS.observer = observe
