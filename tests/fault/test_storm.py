"""A storm: drivers are killed and stopped, their clocks jump, recoveries run and die, and S3 loses answers.

`make test` runs one short storm. In `make soak` each kind of store and journal has storms for 100 s, times
`LOCKGATE_TEST_SOAK`.
"""

from __future__ import annotations

import os
import secrets
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

import pytest

from lockgate.storage_core.commit.records.phase import TERMINAL
from lockgate.storage_core.commit.recovery.recover import recover_all
from lockgate.storage_core.commit.recovery.upload_sweep import sweep_uploads
from lockgate.storage_core.errors import OutcomeUnknownError, StoreUnavailableError
from tests.conftest import Summarise
from tests.support.commit.destination import ManualClock, World
from tests.support.processes.contest import BASE, CONTESTS, SHORT_LEASES, Storm, check_log, files
from tests.support.processes.drivers import COMMITTED, REFUSED, JobOrder, Place
from tests.support.s3.faulty_proxy import FaultyProxy, faulty_proxy
from tests.support.soak import SOAK, soak_only

if TYPE_CHECKING:
    from tests.support.postgres import Server

pytestmark = [pytest.mark.fault, pytest.mark.integration]

STORM_S: Final = 100 * SOAK
FAULT_RATE: Final = 0.04
TRIES: Final = 40
PATIENCE_S: Final = 120.0
ORDERS: Final = {
    **{name: orders for name, orders in CONTESTS.items() if name != "append x 8"},
    "append x 4": [BASE, *(JobOrder(f"job{n}", "append", files(f"job{n}", n)) for n in range(4))],
    "fail + append": [
        BASE,
        JobOrder("one", "fail", files("one", 1, 2)),
        JobOrder("two", "append", files("two", 2, 3)),
    ],
}
S3: Final = pytest.mark.requires("s3-server")
POSTGRES: Final = pytest.mark.requires("postgres")


class AheadClock(ManualClock):
    """The machine's clock plus `now` seconds, which sleeping adds at once."""

    def now_s(self) -> float:
        return time.time() + self.now


@dataclass
class Kind:
    """A kind of store and journal.

    Attributes:
        url: URL below which each storm has its destination.
        options: Settings of the drivers.
        direct: Settings without the proxy.
        proxy: The proxy before S3; None if the store is local.
    """

    url: str
    options: dict[str, object]
    direct: dict[str, object]
    proxy: FaultyProxy | None = None


@pytest.fixture
def kind(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kind]:
    store, journal = request.param
    journal_url = {"none": "none", "sqlite": f"sqlite:///{tmp_path / 'journal.db'}"}.get(journal)
    if journal_url is None:
        server: Server = request.getfixturevalue("postgres")
        journal_url = server.new_database(f"storm_{secrets.token_hex(4)}")
    options: dict[str, object] = {**SHORT_LEASES, "journal_url": journal_url, "orphan_age_s": 3600.0}
    if store == "local":
        yield Kind(str(tmp_path), options, options)
        return
    for variable in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", os.environ["LOCKGATE_TEST_S3_KEY"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", os.environ["LOCKGATE_TEST_S3_SECRET"])
    endpoint = os.environ["LOCKGATE_TEST_S3_ENDPOINT"]
    options |= {"s3_endpoint_url": endpoint, "s3_region": "us-east-1"}
    with faulty_proxy(endpoint, FAULT_RATE) as proxy:
        url = f"{os.environ['LOCKGATE_TEST_S3_URL']}/storm-{secrets.token_hex(8)}"
        yield Kind(url, {**options, "s3_endpoint_url": proxy.endpoint}, options, proxy)


def recover(world: World) -> None:
    """Recover until no job and no upload is left, as a scheduled recovery does."""
    ends_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends_s:
        world.clock.sleep(world.settings.orphan_age_s)
        with suppress(OutcomeUnknownError, StoreUnavailableError):
            results = list(recover_all(world.url, settings=world.settings, clock=world.clock))
            sweep_uploads(world.url, dry_run=False, settings=world.settings, clock=world.clock)
            if all(result.ended in TERMINAL for result in results) and not world.open_uploads():
                return
        time.sleep(0.2)  # leases lapse by the machine's clock
    raise AssertionError(f"after {PATIENCE_S:.0f} s something is left: {results} {world.open_uploads()}")


def storm(kind: Kind, root: Path, name: str, number: int) -> Counter[str]:
    """Run one storm and check what it left; return its counts."""
    base, *orders = ORDERS[name]
    url = f"{kind.url}/{number}"
    world = World(root, url, AheadClock(0.0), kind.direct)
    world.run(base.name, base.files, mode=base.mode)
    environment = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    running = Storm(
        Place(url, {"home": root / "home", **kind.options}, environment),
        Random(f"{name}, {number}"),
        leaves_some=True,
        tries_at_most=TRIES,
    )
    try:
        exit_codes = running.run(orders)
    finally:
        running.end()
    recover(replace(world, options=kind.options))
    assert world.live() == world.keys()
    committed = check_log(world, [base, *orders])
    assert {job for job, code in exit_codes.items() if code == COMMITTED} <= committed
    assert {job for job, code in exit_codes.items() if code == REFUSED}.isdisjoint(committed)
    tries = sum(running.tries.values())
    return running.counts + Counter(storms=1, drivers=tries, deaths=running.deaths, committed=len(committed))


@pytest.mark.timeout(900 if not STORM_S else STORM_S + 900)
@pytest.mark.parametrize(
    "kind",
    [
        soak_only(("local", "none")),
        ("local", "sqlite"),
        pytest.param(("s3", "none"), marks=[S3, pytest.mark.soak]),
        pytest.param(("s3", "postgres"), marks=[S3, POSTGRES, pytest.mark.soak]),
    ],
    ids="-".join,
    indirect=True,
)
def test_a_storm_leaves_what_some_serial_order_of_the_committed_jobs_leaves(
    kind: Kind, tmp_path: Path, summarise: Summarise
) -> None:
    counts: Counter[str] = Counter()
    ends_s = time.monotonic() + STORM_S
    number = 0
    while not number or time.monotonic() < ends_s:
        for name in ORDERS if STORM_S else ["replace by partition + append"]:
            number += 1
            counts += storm(kind, tmp_path, name, number)
    faults = dict(kind.proxy.counts) if kind.proxy else "none"
    summarise(f"{number} storms: {dict(counts)}; faults of the proxy: {faults}")
