"""The loss of each service while jobs are committed, and a rolling upgrade: what was reported stays.

With `-s` it prints the table of docs/guides/operations.md. A service ends by SIGKILL, is stopped, hangs, or
has a full disk.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from examples.flights.data import flights
from scripts.stack import main
from tests.integration.stack.services import Stack, Storm, docker, until

AWAY_S = 15
INTO_THE_WRITE_S = 5
SERVICES = ("worker", "redis", "journal", "standby", "s3", "blobs", "journal-metrics")
HANGING = ("worker", "redis", "journal", "standby", "s3", "blobs")
DISKS = {"redis": "redis", "journal": "journal", "s3": "s3", "blobs": "blobs", "staging": "worker"}
AIRFLOWS = (
    *("airflow-api", "airflow-scheduler", "airflow-dag-processor", "airflow-triggerer", "airflow-worker"),
    *("redis", "journal", "s3"),
)
SLOT_SEGMENTS = 140
"""Of 16 MiB: more than the 2 GB that the primary keeps for a standby."""
SPARKS = ("spark-master", "spark-worker")

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.requires("docker")]


def kill(container: str) -> None:
    """End a container's process as a crash does; `docker kill` would keep the engine from a restart."""
    pid = docker("inspect", "--format", "{{.State.Pid}}", container)
    beside = ("run", "--rm", "--pid", "host", "lockgate-stand-in/debian", "sh", "-c")
    docker(*beside, f"kill -9 {pid}")


def stop(container: str) -> None:
    docker("stop", container)
    time.sleep(AWAY_S)
    docker("start", container)


def pause(container: str) -> None:
    docker("pause", container)
    time.sleep(AWAY_S)
    docker("unpause", container)


def wait_until_healthy(container: str) -> None:
    state = "{{.State.Status}} {{.State.Health.Status}}"
    time.sleep(2)  # a killed one is not noticed at once
    until(lambda: docker("inspect", "--format", state, container) == "running healthy")


@contextmanager
def watched(storm: Storm, event: str) -> Iterator[None]:
    """Print what the storm's driver saw from the loss of a service on, until jobs are committed again."""
    storm.committed(since=time.time())
    began = time.time()
    yield
    healthy = time.time()
    again = storm.committed(since=healthy)
    seen = [one for one in storm.answers if began < one["began"] + one["seconds"] and one is not again]
    print(f"{event}: healthy {healthy - began:.0f} s after the loss")
    for what in ("job", "blob"):
        mine = [one for one in seen if one["what"] == what]
        slowest = max((one["seconds"] for one in mine if not one["error"]), default=0)
        print(f"   {what}: {sum(not one['error'] for one in mine)} done, the slowest in {slowest} s")
        for one in mine:
            if one["error"]:
                print(f"      after {one['seconds']} s {one['error'][:200]}")


def assert_nothing_lost(storm: Storm) -> None:
    print(json.dumps(storm.end))
    assert storm.end["acknowledged"] > 0
    assert storm.end["lost"] == []
    assert storm.end["partial"] == {}


@pytest.mark.parametrize("lose", [kill, stop, pause])
def test_a_job_outlives_the_loss_of_each_service(stack: Stack, lose: Callable[[str], None]) -> None:
    with stack.storm() as storm:
        for service in HANGING if lose is pause else SERVICES:
            container = stack.container(service)
            with watched(storm, f"{lose.__name__} {service}"):
                lose(container)
                wait_until_healthy(container)
    assert_nothing_lost(storm)


def test_a_rolling_upgrade_and_the_way_back_lose_nothing(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    for image in ("workers", "airflow"):
        docker("tag", f"lockgate/{image}:0.1.0", f"lockgate/{image}:0.1.1")
    with stack.storm() as storm:
        for version in ("0.1.1", "0.1.0"):
            monkeypatch.setenv("LOCKGATE_VERSION", version)
            for services in (("worker",), ("blobs", "journal-metrics")):
                with watched(storm, f"{' and '.join(services)} to {version}"):
                    docker("compose", "up", "--detach", "--no-build", "--no-deps", *services)
                    for name, one in stack.containers().items():
                        if one["Service"] in services:
                            wait_until_healthy(name)
                            assert one["Image"] == f"lockgate/workers:{version}"
    assert_nothing_lost(storm)
    assert storm.end["errors"] == 0


@pytest.mark.parametrize(
    ("service", "lose"),
    [*((one, kill) for one in (*AIRFLOWS, *SPARKS)), *((one, stop) for one in (*AIRFLOWS[1:4], *SPARKS))],
)
def test_a_run_of_the_form_outlives_the_loss_of_a_service(
    stack: Stack, service: str, lose: Callable[[str], None]
) -> None:
    began_s = time.monotonic()
    master = {"master": "spark://spark-master:7077"} if service in SPARKS else {}
    destination = f"s3://lake/{lose.__name__}-{service}"
    run = stack.trigger(stack.flights() | master | {"destination": destination})
    tasks = f"{run}/taskInstances"
    until(lambda: "running" in {one["state"] for one in stack.asked(tasks)["task_instances"]})
    time.sleep(INTO_THE_WRITE_S)
    container = stack.container(service)
    lost_s = time.monotonic()
    lose(container)
    wait_until_healthy(container)
    healthy_s = time.monotonic()
    receipt = stack.receipt(run)
    assert receipt["rows"] == flights.ROWS
    tries = {one["task_id"]: one["try_number"] for one in stack.asked(tasks)["task_instances"]}
    print(
        f"{lose.__name__} {service} after {lost_s - began_s:.0f} s, healthy {healthy_s - lost_s:.0f} s "
        f"later; the run ended after {time.monotonic() - began_s:.0f} s: {receipt['rows']} rows; "
        f"tries {tries}"
    )


@pytest.mark.parametrize("lose", [kill, stop])
def test_prometheus_keeps_its_figures(stack: Stack, lose: Callable[[str], None]) -> None:
    until(lambda: stack.figures("up"))
    before = time.time()
    lose(stack.container("prometheus"))
    wait_until_healthy(stack.container("prometheus"))
    until(lambda: stack.figures("up"))
    assert stack.figures(f"up @ {before:.0f}")


def test_a_full_disk_is_reported_and_forgotten_when_there_is_room(small_disks: Stack) -> None:
    with small_disks.storm() as storm:
        for disk, service in DISKS.items():
            filler = f"/disks/{disk}/filler"
            with watched(storm, f"full disk of {disk}"):
                small_disks.inside("disks", "sh", "-c", f"cat /dev/zero > {filler} || true")
                time.sleep(2 * AWAY_S)
                small_disks.inside("disks", "rm", filler)
                wait_until_healthy(small_disks.container(service))
    assert_nothing_lost(storm)
    assert main(["up", "worker", "blobs", "standby", "journal-metrics"]) == 0


def test_a_standby_that_fell_behind_its_slot_gets_a_new_copy(stack: Stack) -> None:
    def on_primary(statement: str) -> str:
        password = 'PGPASSWORD="$(cat /run/secrets/lockgate/postgres-password)"'
        psql = f'{password} psql -h 127.0.0.1 -U postgres -qAtc "$0"'
        return stack.inside("journal", "sh", "-c", psql, statement).strip()

    docker("compose", "stop", "standby")
    segment = "perform pg_logical_emit_message(false, '', ''); perform pg_switch_wal()"
    on_primary(f"do $body$ begin for i in 1..{SLOT_SEGMENTS} loop {segment}; end loop; end $body$")
    on_primary("checkpoint")
    assert on_primary("select wal_status from pg_replication_slots") == "lost"
    docker("compose", "rm", "--force", "standby")
    docker("volume", "rm", "lockgate-images-test_standby")
    assert main(["up", "standby"]) == 0
    assert on_primary("select wal_status from pg_replication_slots") == "reserved"
