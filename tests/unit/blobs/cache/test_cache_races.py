"""Processes read blobs while others evict them, also over a real connection."""

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockgate.storage_core.blobs.cache.blob_cache import BlobCache
from lockgate.storage_core.settings import MIB
from tests.support.blobs.cache import CacheWorld, cache_world
from tests.support.blobs.http_server import client_of, proxy_to, served
from tests.support.blobs.server import INTERVAL_S, key_of

READERS = 3
GETS = 60


@pytest.fixture
def world(tmp_path: Path) -> Iterator[CacheWorld]:
    with cache_world(tmp_path) as world:
        yield world


def test_held_blobs_stay_whole_during_constant_eviction_of_idle_blobs(world: CacheWorld) -> None:
    blobs = [world.put(os.urandom(1000), job_id) for job_id in ("sales", "flights") for _ in range(2)]
    contents = {blob.blob_key: world.server.get(*key_of(blob)) for blob in blobs}
    cache = world.cache()
    fork = multiprocessing.get_context("fork")

    def read(seed: int) -> None:
        chosen = random.Random(seed)
        for _ in range(GETS):
            blob, other = chosen.sample(blobs, 2)
            with cache.pinned(*key_of(blob)) as path, cache.pinned(*key_of(other)) as other_path:
                for held, file in ((blob, path), (other, other_path)):
                    if file.read_bytes() != contents[held.blob_key]:
                        os._exit(1)
        os._exit(0)

    readers = [fork.Process(target=read, args=(seed,)) for seed in range(READERS)]
    for reader in readers:
        reader.start()
    while any(reader.is_alive() for reader in readers):
        world.blobs.clock.sleep(INTERVAL_S + 1)
        cache.folder.evict(make_room=True)
    for reader in readers:
        reader.join()
    assert [reader.exitcode for reader in readers] == [0] * READERS
    world.blobs.clock.sleep(INTERVAL_S + 1)
    cache.evict()
    assert list(cache.local.jobs()) == []


def test_a_connection_that_breaks_during_a_download_leaves_the_whole_file_or_none(
    world: CacheWorld, tmp_path: Path
) -> None:
    blob = world.put(os.urandom(MIB))
    with served(world.server) as url, proxy_to(url) as proxy, client_of(proxy.url) as client:
        proxy.breaks.extend([("down", 300_000), ("down", 200_000)])
        with BlobCache(tmp_path / "far", None, client, limit_bytes=100 * MIB, interval_s=INTERVAL_S) as cache:
            assert cache.get(*key_of(blob)) == world.server.get(*key_of(blob))
            assert proxy.connections > 1
            assert list((tmp_path / "far" / "blobs" / ".incoming").iterdir()) == []
