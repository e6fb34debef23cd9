"""After a server dies during a put, the next sweep of any server lists the stores."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lockgate.storage_core.blobs.protocol import NewBlob
from lockgate.storage_core.blobs.reports import Amount, Why
from lockgate.storage_core.blobs.storage.hashing import BACKGROUND_BYTES
from lockgate.storage_core.blobs.storage.server_liveness import SERVERS
from lockgate.storage_core.failpoints import FAILPOINTS
from tests.support.blobs.remains import everything, sweep_twice
from tests.support.blobs.server import INTERVAL_S, BlobWorld, blob_world

DATA = b"bytes of a blob"
PUTS_AT_EXIT = """
import atexit, sys
from pathlib import Path

worlds = []
atexit.register(lambda: print(worlds[0].server.put(bytes(int(sys.argv[2]))).size_bytes))

from tests.support.blobs.server import blob_world

held = blob_world(Path(sys.argv[1]))
worlds.append(held.__enter__())
worlds[0].server.put(b"before")
"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[BlobWorld]:
    with blob_world(tmp_path) as world:
        assert world.server.sweep(dry_run=False).sought_orphans
        yield world


def in_another_process(act: Callable[[], object]) -> None:
    """Run a function in a fork that then exits without any clean-up."""
    child = os.fork()
    if child == 0:
        act()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def dies_before_it_records() -> None:
    def die(point: str) -> None:
        if point == "blob-put.journal-write.before":
            os._exit(0)

    FAILPOINTS.observer = die


def shown(world: BlobWorld) -> list[Path]:
    return list((world.server.holdings.local.path / SERVERS).glob("*"))


def test_bytes_of_a_killed_server_are_found_although_their_client_completes_its_set(
    world: BlobWorld,
) -> None:
    upload_set = world.server.begin_set("sales")

    def put() -> None:
        dies_before_it_records()
        world.server.put(DATA, job_id="sales", upload_set=upload_set)

    in_another_process(put)
    assert world.server.complete_set(upload_set) == 0
    assert world.server.sweep(dry_run=True).sought_orphans
    assert world.server.sweep(dry_run=False).swept == {Why.ORPHAN: Amount(blobs=1, size_bytes=len(DATA))}
    assert shown(world) == []
    sweep_twice(world)
    assert everything(world) == []


def test_the_stores_are_listed_until_the_set_of_a_killed_server_is_closed(world: BlobWorld) -> None:
    upload_set = world.server.begin_set("sales")

    def put() -> None:
        dies_before_it_records()
        world.server.put(DATA, job_id="sales", upload_set=upload_set)

    in_another_process(put)
    for _ in range(2):
        assert world.server.sweep(dry_run=False).sought_orphans
    world.server.complete_set(upload_set)
    assert world.server.sweep(dry_run=False).swept[Why.ORPHAN].blobs == 1
    assert not world.server.sweep(dry_run=False).sought_orphans


def test_a_server_that_dies_between_its_puts_makes_no_listing_due(world: BlobWorld) -> None:
    upload_set = world.server.begin_set("sales")
    in_another_process(lambda: world.server.put(DATA, job_id="sales", upload_set=upload_set))
    assert len(shown(world)) == 1
    assert not world.server.sweep(dry_run=True).sought_orphans
    assert not world.server.sweep(dry_run=False).sought_orphans
    assert shown(world) == []


def test_a_live_server_is_not_treated_as_dead(world: BlobWorld) -> None:
    def slow() -> Iterator[bytes]:
        yield DATA
        assert not world.server.sweep(dry_run=False).sought_orphans
        assert len(shown(world)) == 1
        world.server.put(b"another", upload_set=upload_set, job_id="sales")
        assert shown(world)[0].stat().st_mtime == 0
        yield DATA

    upload_set = world.server.begin_set("sales")
    world.server.put(slow(), job_id="sales", upload_set=upload_set)
    assert shown(world)[0].stat().st_mtime != 0
    world.server.close()
    assert shown(world) == []


def test_a_server_closed_during_a_put_makes_a_listing_due(world: BlobWorld) -> None:
    upload_set = world.server.begin_set("sales")

    def put() -> None:
        dies_before_it_records()
        new = NewBlob(upload_set=upload_set)
        with world.server.ingest.receiving("sales", new) as arriving:
            arriving.write(DATA)
            world.server.close()  # as at a second Ctrl-C: puts in progress are not waited for
            world.server.ingest.keep(arriving, "sales", new)

    in_another_process(put)
    world.server.complete_set(upload_set)
    assert world.server.sweep(dry_run=False).swept == {Why.ORPHAN: Amount(blobs=1, size_bytes=len(DATA))}
    assert shown(world) == []


@pytest.mark.parametrize("size_bytes", [1, BACKGROUND_BYTES])
def test_a_server_accepts_puts_until_the_exit_of_its_process(tmp_path: Path, size_bytes: int) -> None:
    run = subprocess.run(
        [sys.executable, "-c", PUTS_AT_EXIT, str(tmp_path), str(size_bytes)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (run.stdout.strip(), run.stderr) == (str(size_bytes), "")


def test_a_living_fork_does_not_hide_its_parents_death(world: BlobWorld) -> None:
    upload_set = world.server.begin_set("sales")
    (wait, end), (born, birth) = os.pipe(), os.pipe()

    def put() -> None:
        def fork_and_die(point: str) -> None:
            if point == "blob-put.journal-write.before":
                if os.fork() == 0:
                    os.close(end)
                    os.write(birth, b"!")
                    os.read(wait, 1)  # stays alive until the test ends
                    os._exit(0)
                os.read(born, 1)
                os._exit(0)

        FAILPOINTS.observer = fork_and_die
        world.server.put(DATA, job_id="sales", upload_set=upload_set)

    in_another_process(put)
    try:
        assert world.server.sweep(dry_run=False).sought_orphans
    finally:
        for pipe in (wait, end, born, birth):
            os.close(pipe)


def test_a_sweep_that_dies_before_its_listing_leaves_the_listing_to_the_next_sweep(world: BlobWorld) -> None:
    upload_set = world.server.begin_set("sales")

    def put() -> None:
        dies_before_it_records()
        world.server.put(DATA, job_id="sales", upload_set=upload_set)

    in_another_process(put)
    world.server.complete_set(upload_set)
    world.server.holdings.liveness.reclaim_from_dead_servers()
    world.clock.sleep(INTERVAL_S)
    assert world.server.sweep(dry_run=False).swept[Why.ORPHAN].blobs == 1
