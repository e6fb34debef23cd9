"""A worker's cache returns only bytes that hash to their key, from the nearest store that has them."""

from __future__ import annotations

import errno
import multiprocessing
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lockgate.storage_core.blobs.cache.blob_cache import REST_S
from lockgate.storage_core.blobs.cache.pins import JOB
from lockgate.storage_core.blobs.storage.incoming_file import IncomingFile
from lockgate.storage_core.errors import ObjectNotFoundError, StoreUnavailableError
from lockgate.storage_core.file_locks import lock_exclusive, try_lock_exclusive
from lockgate.storage_core.settings import MIB
from tests.support.blobs.cache import CacheWorld, DownStore, cache_world, killed, references
from tests.support.blobs.server import INTERVAL_S, damage, key_of


@pytest.fixture
def world(tmp_path: Path) -> Iterator[CacheWorld]:
    with cache_world(tmp_path) as world:
        yield world


def test_a_blob_is_fetched_once_and_then_read_from_the_cache(world: CacheWorld) -> None:
    blob = world.put(b"library")
    cache = world.cache()
    with cache.pinned(*key_of(blob)) as path:
        assert path.read_bytes() == b"library"
        assert path == world.file_of(blob)
    assert cache.get(*key_of(blob)) == b"library"
    assert world.server.fetched == [blob.blob_key]


def test_a_task_retried_in_another_process_finds_its_jobs_blobs_in_the_cache(world: CacheWorld) -> None:
    world.is_kept = True
    blob = world.put(b"library")
    first = world.cache()
    first.get(*key_of(blob))
    first.close()
    world.blobs.clock.sleep(INTERVAL_S - 1)
    assert world.cache().get(*key_of(blob)) == b"library"
    assert world.server.fetched == [blob.blob_key]


def test_the_ha_store_is_read_before_the_server(world: CacheWorld) -> None:
    blob = world.put(b"library")
    world.ha = world.server.stores.ha
    assert world.cache().get(*key_of(blob)) == b"library"
    assert world.server.fetched == []


def test_a_recreatable_blob_is_fetched_from_the_server_only(world: CacheWorld) -> None:
    blob = world.server.put(b"message", guarantee="recreatable", owners=["receiver:1"])
    world.ha = ha = DownStore()
    assert world.cache().get(*key_of(blob), guarantee="recreatable") == b"message"
    assert ha.calls == 0


def test_an_unavailable_ha_store_is_skipped_and_not_tried_again_for_a_while(world: CacheWorld) -> None:
    blobs = [world.put(data) for data in (b"a", b"b", b"c")]
    world.ha = ha = DownStore()
    cache = world.cache()
    assert [cache.get(*key_of(blob)) for blob in blobs[:2]] == [b"a", b"b"]
    assert ha.calls == 1
    world.blobs.clock.sleep(REST_S)
    assert cache.get(*key_of(blobs[2])) == b"c"
    assert ha.calls == 2


def test_when_both_are_down_cached_blobs_are_served_and_other_gets_raise_an_error_that_names_both(
    world: CacheWorld,
) -> None:
    here, elsewhere = world.put(b"here"), world.put(b"elsewhere")
    world.ha = DownStore()
    cache = world.cache()
    cache.get(*key_of(here))
    world.blobs.clock.sleep(REST_S)
    world.server.is_down = True
    assert cache.get(*key_of(here)) == b"here"
    with pytest.raises(StoreUnavailableError, match=r"cache: .* HA store: .*down.* server: .*down") as caught:
        cache.get(*key_of(elsewhere))
    assert "try again" in str(caught.value)
    assert world.under_way() == []


def test_a_get_of_a_blob_that_no_store_has_raises_object_not_found(world: CacheWorld) -> None:
    blob = world.put(b"library")
    world.server.finish("sales")
    with pytest.raises(ObjectNotFoundError, match="upload it again"):
        world.cache().get(*key_of(blob))


def test_threads_that_request_one_blob_at_once_download_it_once(world: CacheWorld) -> None:
    blob = world.put(os.urandom(2 * MIB))
    cache = world.cache()
    together = threading.Barrier(8)

    def get(_: int) -> int:
        together.wait()
        return len(cache.get(*key_of(blob)))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(get, range(8))) == [2 * MIB] * 8
    assert world.server.fetched == [blob.blob_key]
    assert references(cache, *key_of(blob)) == 0


def test_processes_that_request_one_blob_at_once_download_it_once(world: CacheWorld, tmp_path: Path) -> None:
    blob = world.put(os.urandom(MIB))
    cache = world.cache()
    fetched = tmp_path / "fetched"
    fetch = world.server.fetch

    def noted(*arguments):  # type: ignore[no-untyped-def]
        with fetched.open("ab") as file:
            file.write(b"x")
        return fetch(*arguments)

    world.server.fetch = noted  # type: ignore[method-assign]
    fork = multiprocessing.get_context("fork")
    together = fork.Barrier(4)

    def get() -> None:
        together.wait()
        code = 0 if len(cache.get(*key_of(blob))) == MIB else 1
        os._exit(code)

    children = [fork.Process(target=get) for _ in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * 4
    assert fetched.read_bytes() == b"x"


def test_an_unreferenced_blob_stays_for_an_interval_and_is_then_deleted_with_its_folder(
    world: CacheWorld,
) -> None:
    blob = world.put(b"a")
    cache = world.cache()
    world.blobs.clock.sleep(5 * INTERVAL_S)
    with cache.pinned(*key_of(blob)):
        world.blobs.clock.sleep(5 * INTERVAL_S)
        assert cache.evict().blobs == 0
    assert cache.evict().blobs == 0
    world.blobs.clock.sleep(INTERVAL_S - 1)
    assert cache.evict().blobs == 0
    world.blobs.clock.sleep(2)
    evicted = cache.evict()
    assert (evicted.blobs, evicted.size_bytes, evicted.kept_bytes) == (1, 1, 0)
    assert not world.file_of(blob).parent.exists()
    assert not (world.path / "pins" / "sales").exists()


def test_blobs_referenced_by_a_live_process_are_not_evicted_and_those_of_a_killed_one_are_staged(
    world: CacheWorld,
) -> None:
    blob = world.put(b"a")
    mine, others = world.cache(), world.cache()
    with others.pinned(*key_of(blob)):
        world.blobs.clock.sleep(2 * INTERVAL_S)
        assert mine.evict().blobs == 0
        killed(others.folder)
        assert mine.evict().blobs == 0
        world.blobs.clock.sleep(INTERVAL_S + 1)
        assert mine.evict().blobs == 1


def test_over_the_limit_the_longest_idle_blobs_are_evicted_first_and_referenced_blobs_never(
    world: CacheWorld,
) -> None:
    world.limit_bytes = MIB
    oldest, older, newer, newest = (world.put(os.urandom(400 * 1024)) for _ in range(4))
    cache = world.cache()
    with cache.pinned(*key_of(oldest)):
        for blob in (older, newer, newest):
            cache.get(*key_of(blob))
            world.blobs.clock.sleep(1)
        cache.evict()
        assert [world.is_cached(blob) for blob in (oldest, older, newer, newest)] == [
            True,
            False,
            False,
            True,
        ]


def test_referenced_blobs_over_the_limit_are_kept_with_a_warning_and_evicted_once_released(
    world: CacheWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.limit_bytes = MIB
    blobs = [world.put(os.urandom(700 * 1024)) for _ in range(2)]
    cache = world.cache()
    with cache.pinned(*key_of(blobs[0])):
        with cache.pinned(*key_of(blobs[1])):
            assert all(world.is_cached(blob) for blob in blobs)
            assert "more than its limit" in caplog.text
        assert [world.is_cached(blob) for blob in blobs] == [True, False]


def test_a_start_after_a_kill_drops_damaged_files_and_keeps_the_rest(world: CacheWorld) -> None:
    whole, damaged = world.put(b"whole"), world.put(b"damaged")
    cache = world.cache()
    with cache.pinned(*key_of(whole)), cache.pinned(*key_of(damaged)):
        killed(cache.folder)
    damage(world.file_of(damaged))
    half = world.path / "blobs" / ".incoming" / "half"
    half.write_bytes(b"ha")
    world.blobs.clock.sleep(2 * INTERVAL_S)

    restarted = world.cache()

    assert world.is_cached(whole)
    assert not world.is_cached(damaged)
    assert world.under_way() == []
    assert restarted.evict().blobs == 0  # it was staged at the start
    world.blobs.clock.sleep(INTERVAL_S + 1)
    assert restarted.evict().blobs == 1


def test_a_fork_inherits_no_references_and_its_end_releases_none_of_its_parents(world: CacheWorld) -> None:
    blob = world.put(b"a")
    cache = world.cache()
    with cache.pinned(*key_of(blob)):
        child = os.fork()
        if child == 0:
            held = references(cache, *key_of(blob))
            cache.close()
            os._exit(held + (0 if world.is_cached(blob) else 2))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        world.blobs.clock.sleep(2 * INTERVAL_S)
        assert world.cache().evict().blobs == 0
        assert world.is_cached(blob)


def test_on_a_full_disk_idle_blobs_are_evicted_and_otherwise_the_get_fails_and_leaves_nothing(
    world: CacheWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle, wanted = world.put(b"idle"), world.put(b"wanted")
    cache = world.cache()
    cache.get(*key_of(idle))
    write = IncomingFile.write

    def full_while_idle_is_here(incoming: IncomingFile, data: bytes) -> None:
        if world.is_cached(idle):
            cause = OSError(errno.ENOSPC, "No space left on device")
            raise StoreUnavailableError("the disk is full") from cause
        write(incoming, data)

    monkeypatch.setattr(IncomingFile, "write", full_while_idle_is_here)
    assert cache.get(*key_of(wanted)) == b"wanted"
    assert not world.is_cached(idle)

    monkeypatch.undo()
    with cache.pinned(*key_of(idle)):
        world.file_of(wanted).unlink()
        monkeypatch.setattr(IncomingFile, "write", full_while_idle_is_here)
        with pytest.raises(StoreUnavailableError, match="full"):
            cache.get(*key_of(wanted))
    assert world.under_way() == []
    assert world.server.fetched[-1] == wanted.blob_key


def test_the_lock_of_a_job_is_removed_after_those_of_its_blobs(
    world: CacheWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a process with the new lock could lose a blob's lock, and the blob, to the deletion."""
    blobs = [world.put(bytes([number])) for number in range(20)]
    cache = world.cache()
    for blob in blobs:
        cache.get(*key_of(blob))
    gone: list[str] = []
    unlink = os.unlink

    def unlink_and_record(path: str | Path, *, dir_fd: int | None = None) -> None:
        gone.append(Path(path).name)
        unlink(path, dir_fd=dir_fd)

    world.blobs.clock.sleep(INTERVAL_S)
    monkeypatch.setattr(os, "unlink", unlink_and_record)
    assert cache.evict().blobs == len(blobs)
    monkeypatch.undo()
    assert gone.index(JOB) == len(gone) - 1
    assert {blob.blob_key for blob in blobs} <= set(gone[:-1])
    assert not (world.path / "pins" / blobs[0].job_id).exists()


def test_a_released_lock_is_free_although_a_fork_has_inherited_its_file(tmp_path: Path) -> None:
    """Otherwise a pool process forked while another thread fetched or evicted would keep a blob locked."""
    lock = tmp_path / "lock"
    read_end, write_end = os.pipe()
    held = lock_exclusive(lock)
    child = os.fork()
    if child == 0:
        os.close(write_end)
        os.read(read_end, 1)
        os._exit(0)
    os.close(read_end)
    try:
        assert try_lock_exclusive(lock) is None
        held.close()
        again = try_lock_exclusive(lock)
        assert again is not None
        again.close()
    finally:
        os.close(write_end)
        os.waitpid(child, 0)


def test_a_fork_that_closes_an_inherited_lock_does_not_release_it_for_its_parent(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with lock_exclusive(lock) as held:
        child = os.fork()
        if child == 0:
            held.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert try_lock_exclusive(lock) is None
