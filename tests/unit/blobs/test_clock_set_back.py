"""A clock that is set back by years keeps no unreferenced blob for years."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lockgate.storage_core.blobs.cache.directory import CacheFolder
from tests.support.blobs.server import INTERVAL_S, BlobWorld, blob_world, key_of

TEN_YEARS_S = 10 * 365 * 86_400.0


@pytest.fixture
def world(tmp_path: Path, journal_url: str) -> Iterator[BlobWorld]:
    with blob_world(tmp_path, journal_url) as world:
        world.clock.sleep(2 * TEN_YEARS_S)
        yield world


def sweep_twice(world: BlobWorld) -> int:
    deleted = 0
    for _ in range(2):
        deleted += world.server.sweep(dry_run=False).deleted.blobs
        world.clock.sleep(INTERVAL_S)
        world.server.sets.renewer.renew()
    return deleted + world.server.sweep(dry_run=False).deleted.blobs


def test_a_staged_blob_is_deleted_after_an_interval_of_the_clock_that_was_set_back(world: BlobWorld) -> None:
    blob = world.server.put(b"message", owners=["receiver:1"])
    world.server.close()
    world.server.drop(*key_of(blob), "receiver:1")
    world.restart()
    world.clock.sleep(-TEN_YEARS_S)
    world.server.sweep(dry_run=False)
    assert world.is_local(blob)  # not before a whole interval
    assert sweep_twice(world) == 1
    assert world.row(blob) is None
    assert not world.is_local(blob)


def test_a_reference_lapses_after_its_own_time_by_the_clock_that_was_set_back(world: BlobWorld) -> None:
    blob = world.server.put(b"message", owners=["receiver:1"], lapse_s=100.0)
    kept = world.server.put(b"library", owners=["job"])
    world.server.close()
    world.restart()
    world.clock.sleep(-TEN_YEARS_S)
    world.server.sweep(dry_run=False)
    assert (world.owners(blob), world.owners(kept)) == (["receiver:1"], ["job"])
    world.clock.sleep(101.0)
    world.server.sweep(dry_run=False)
    assert world.owners(blob) == []
    assert sweep_twice(world) == 1
    assert world.server.get(*key_of(kept)) == b"library"


def test_a_clock_that_is_set_back_by_less_than_an_interval_changes_no_time(world: BlobWorld) -> None:
    blob = world.server.put(b"message", owners=["receiver:1"], lapse_s=100.0)
    with world.journal.reading() as reading:
        before = reading.status().stamp
    world.clock.sleep(-INTERVAL_S / 2)
    world.server.sweep(dry_run=False, orphans=False)
    with world.journal.reading() as reading:
        assert reading.status().stamp == before
    assert world.owners(blob) == ["receiver:1"]


def test_a_cached_blob_leaves_the_cache_after_an_interval_of_the_clock_that_was_set_back(
    world: BlobWorld, tmp_path: Path
) -> None:
    blob = world.server.put(b"library", job_id="sales", owners=["job"])
    folder = CacheFolder(tmp_path / "cache", limit_bytes=10**9, interval_s=INTERVAL_S, clock=world.clock)
    with closing(folder):
        with folder.pinned(*key_of(blob)):
            path = world.server.fetch(folder.local, *key_of(blob))
        world.clock.sleep(-TEN_YEARS_S)
        folder.evict()
        assert path.exists()
        world.clock.sleep(INTERVAL_S + 1.0)
        folder.evict()
        assert not path.exists()
