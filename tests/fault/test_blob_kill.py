"""Kill -9 a blob server, a cache and a sweep before every step: no live blob is lost, no garbage is left."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from lockgate.storage_core.blobs.blob_protocol import BlobInfo
from lockgate.storage_core.blobs.cache.blob_cache import BlobCache
from lockgate.storage_core.blobs.server.open_upload_sets import HARD_S
from lockgate.storage_core.blobs.sweep.orphans import recover
from lockgate.storage_core.settings import MIB
from tests.conftest import Summarise
from tests.support.blobs.kill_points import BEGINS_S, Confirm, Deaths, assert_settled, prepare, world_at
from tests.support.blobs.server import INTERVAL_S, BlobWorld, key_of
from tests.support.soak import IS_SOAK

pytestmark = pytest.mark.fault

AFTER_S = INTERVAL_S + HARD_S
"""Time after which blobs staged at the beginning are due and every lease has lapsed."""


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """Return a directory in memory if the machine has one: only processes die here, not machines."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as root:
        yield Path(root)


@pytest.fixture
def kept(tmp_path: Path) -> list[BlobInfo]:
    """Return the blobs that are kept in the initial state of every run."""
    return prepare(tmp_path / "template")


def is_checked(step: str, before: Sequence[str]) -> bool:
    """Return whether to check this state: after new kinds of step and every thirtieth; in a soak always."""
    return IS_SOAK or step not in before or len(before) % 30 == 0


def upload_and_submit(world: BlobWorld, confirm: Confirm) -> None:
    """Run a job's life until it is running."""
    server = world.server
    upload_set = server.begin_set("new")
    blobs = [
        server.put(data, job_id="new", use="library", upload_set=upload_set)
        for data in (b"small", b"of several parts" * 100)
    ]
    assert server.complete_set(upload_set) == 2
    server.submit("new", [blob.blob_key for blob in blobs])
    for blob in blobs:
        confirm(blob)
    confirm(server.put(b"message", job_id="new", guarantee="recreatable", owners=["receiver:9"]))
    old = server.put(b"log", job_id="new", use="log", guarantee="recreatable", owners=["viewer:9"])
    confirm(server.put(b"longer log", job_id="new", use="log", guarantee="recreatable", owners=["viewer:9"]))
    server.drop(*key_of(old), "viewer:9")
    server.close()


def fail_and_finish(world: BlobWorld, confirm: Confirm) -> None:
    """End a job of which nothing has to be kept."""
    world.server.fail("sales")
    world.server.finish("sales")


def sweep(world: BlobWorld, confirm: Confirm) -> None:
    report = world.server.sweep(dry_run=False)
    assert report.problems == ()


def refill(world: BlobWorld, confirm: Confirm) -> None:
    """Start a server that lost its disk and read the blobs that survive this."""
    world.server.stores.local.delete_all()
    recover(world.server.stores)
    (library,) = (row for row in world.server.page("sales") if row.guarantee == "ha" and not row.staged_s)
    world.server.reader.path(*library.key)


def test_a_server_killed_at_any_step_of_a_jobs_uploads_loses_nothing_and_leaves_no_garbage(
    tmp_path: Path, kept: list[BlobInfo], summarise: Summarise
) -> None:
    deaths = Deaths(tmp_path / "world", tmp_path / "template", upload_and_submit, after_s=1.0)
    steps = []
    for death in deaths.each():
        if is_checked(death.step, steps):
            where = f"{len(steps)} {death.step}"
            assert_settled(tmp_path / "world", deaths.dies_s, [*kept, *death.confirmed], where)
        steps.append(death.step)
    summarise(f"{len(steps) - 1} deaths of a server during uploads")
    assert {"rename", "fsync", "blob-put.journal-write.before", "blob-put.journal-write.after"} <= set(steps)


@pytest.mark.soak
def test_a_server_killed_at_any_step_of_a_jobs_end_leaves_nothing_of_the_job(
    tmp_path: Path, kept: list[BlobInfo], summarise: Summarise
) -> None:
    deaths = Deaths(tmp_path / "world", tmp_path / "template", fail_and_finish, after_s=AFTER_S)
    others = [blob for blob in kept if blob.job_id != "sales"]
    steps = []
    for death in deaths.each():
        if is_checked(death.step, steps):
            assert_settled(tmp_path / "world", deaths.dies_s, others, f"{len(steps)} {death.step}")
        steps.append(death.step)
    summarise(f"{len(steps) - 1} deaths of a server during a job's end")
    assert {"unlink", "rmdir"} <= set(steps)


@pytest.mark.soak
def test_the_next_sweep_finishes_one_that_was_killed_at_any_step(
    tmp_path: Path, kept: list[BlobInfo], summarise: Summarise
) -> None:
    deaths = Deaths(tmp_path / "world", tmp_path / "template", sweep, after_s=AFTER_S)
    steps = []
    for death in deaths.each():
        if is_checked(death.step, steps):
            assert_settled(tmp_path / "world", deaths.dies_s, kept, f"{len(steps)} {death.step}")
        steps.append(death.step)
    summarise(f"{len(steps) - 1} deaths of a sweep")
    assert {"unlink", "rmdir", "blob-sweep.journal-write.after", "blob-orphans.journal-write.after"} <= set(
        steps
    )


@pytest.mark.soak
def test_a_server_killed_at_any_step_of_its_recovery_recovers_again(
    tmp_path: Path, kept: list[BlobInfo], summarise: Summarise
) -> None:
    deaths = Deaths(tmp_path / "world", tmp_path / "template", refill, after_s=AFTER_S)
    (library,) = (blob for blob in kept if blob.size_bytes == 4_000)
    steps = []
    for death in deaths.each():
        steps.append(death.step)
        if not is_checked(death.step, steps[:-1]):
            continue
        with world_at(tmp_path / "world", deaths.dies_s) as world:
            for lost in (blob for blob in kept if blob is not library):
                world.server.drop(*key_of(lost), "viewer:1")
                world.server.drop(*key_of(lost), "receiver:2")
            world.server.reader.path(*key_of(library))
        assert_settled(tmp_path / "world", deaths.dies_s, [library], f"{len(steps) - 1} {death.step}")
    summarise(f"{len(steps) - 1} deaths of a recovery")


def cache_of(world: BlobWorld) -> BlobCache:
    return BlobCache(
        world.root / "cache",
        world.server.stores.ha,
        world.server,
        limit_bytes=MIB,
        interval_s=INTERVAL_S,
        clock=world.clock,
    )


def test_a_cache_killed_at_any_step_serves_only_correct_bytes_and_leaves_nothing(
    tmp_path: Path, kept: list[BlobInfo], summarise: Summarise
) -> None:
    library, message, log = kept

    def use(world: BlobWorld, confirm: Confirm) -> None:
        with cache_of(world) as cache:
            with cache.pinned(*key_of(library)):
                cache.get(*key_of(message), guarantee="recreatable")
            world.clock.sleep(INTERVAL_S + 1)
            with cache.pinned(*key_of(log), guarantee="recreatable"):
                assert cache.evict().blobs == 2

    deaths = Deaths(tmp_path / "world", tmp_path / "template", use, after_s=1.0)
    steps = []
    for death in deaths.each():
        steps.append(death.step)
        with world_at(tmp_path / "world", BEGINS_S + 2.0) as world, cache_of(world) as cache:
            blobs = world.root / "cache" / "blobs"
            assert list(blobs.glob(".incoming/*")) == []
            assert cache.get(*key_of(library)) == b"library " * 500
            assert cache.get(*key_of(message), guarantee="recreatable") == b"message"
            assert cache.get(*key_of(log), guarantee="recreatable") == b"log"
            world.clock.sleep(2 * INTERVAL_S + 2)
            assert cache.evict().kept_bytes == 0
            assert [name for _, _, names in os.walk(blobs) for name in names] == []
        assert not (tmp_path / "world" / "cache").exists(), death.step
    summarise(f"{len(steps) - 1} deaths of a cache")
    assert {"rename", "unlink", "rmdir", "utime"} <= set(steps)
