"""Archives extracted by a cache count towards its limit and are evicted with their blobs."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from lockgate.storage_core.blobs.blob_protocol import Artefacts
from lockgate.storage_core.blobs.library import Libraries, LibraryCache
from lockgate.storage_core.errors import StoreUnavailableError
from tests.support.blobs.cache import CacheWorld, cache_world, killed
from tests.support.blobs.libraries import archive, upload
from tests.support.blobs.server import INTERVAL_S
from tests.support.commit.destination import Crash

UNPACKED_BYTES = 1_000_000
"""Extracted size of each archive, which is itself far smaller."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[CacheWorld]:
    with cache_world(tmp_path) as world:
        world.limit_bytes = 5 * UNPACKED_BYTES // 2
        yield world


def native(name: str) -> bytes:
    """Return an archive that must be extracted and is larger when extracted."""
    return archive({f"{name}/fast.so": bytes(UNPACKED_BYTES), f"{name}/__init__.py": ""}, is_packed=True)


def shipped(world: CacheWorld, name: str, job_id: str = "sales") -> Artefacts:
    return upload(world.server, job_id, {f"{name}-1.0-cp311-cp311-linux_x86_64.whl": native(name)})


def unpacked(world: CacheWorld) -> set[str]:
    """Return the packages that are extracted, even in part, anywhere in the cache."""
    return {path.parent.name for path in world.path.rglob("fast.so")}


def held(libraries: LibraryCache, artefacts: Artefacts) -> Libraries:
    with libraries.pinned(artefacts) as found:
        return found


def test_extracted_bytes_count_and_the_longest_unused_are_evicted_with_their_blob(world: CacheWorld) -> None:
    cache = world.cache()
    libraries = LibraryCache(cache)
    first, second, third = (shipped(world, name) for name in ("first", "second", "third"))
    for artefacts in (first, second, first):
        held(libraries, artefacts)
        world.blobs.clock.sleep(1)
    assert cache.evict().blobs == 0
    held(libraries, third)
    assert cache.evict().kept_bytes <= world.limit_bytes
    assert unpacked(world) == {"first", "third"}
    assert len(list((world.path / "blobs" / "sales").iterdir())) == 2
    with libraries.pinned(second) as again:  # the next use extracts it again
        assert (again.unpacked[0].folder / "second" / "fast.so").stat().st_size == UNPACKED_BYTES


def test_archives_held_by_a_process_stay_extracted_in_a_full_cache(world: CacheWorld) -> None:
    held_elsewhere, here = world.cache(), world.cache()
    first = shipped(world, "first", "etl")
    with LibraryCache(held_elsewhere).pinned(first) as libraries:
        world.blobs.clock.sleep(1)
        for name in ("second", "third", "fourth"):
            held(LibraryCache(here), shipped(world, name))
        here.folder.evict(make_room=True)
        assert unpacked(world) == {"first"}
        assert (libraries.unpacked[0].folder / "first" / "fast.so").exists()
    here.folder.evict(make_room=True)
    assert unpacked(world) == set()


def test_an_archive_shared_by_two_sets_of_a_job_is_extracted_once(world: CacheWorld) -> None:
    one = upload(world.server, "sales", {"fast-1.0-cp311-cp311-linux_x86_64.whl": native("fast")})
    both = Artefacts(
        job_id="sales", blobs=(*one.blobs, *upload(world.server, "sales", {"more.py": b"MORE = 1"}).blobs)
    )
    libraries = LibraryCache(world.cache())
    with libraries.pinned(one) as alone, libraries.pinned(both) as together:
        assert alone.folder != together.folder
        assert len(list(world.path.rglob("fast.so"))) == 1
        for found in (alone, together):
            assert (found.unpacked[0].folder / "fast" / "fast.so").exists()


@pytest.mark.parametrize("after_s", [0.0, INTERVAL_S])
def test_a_process_that_dies_during_an_eviction_leaves_no_partial_extraction(
    world: CacheWorld, monkeypatch: pytest.MonkeyPatch, after_s: float
) -> None:
    artefacts = shipped(world, "fast")
    cache, rmtree = world.cache(), shutil.rmtree
    held(LibraryCache(cache), artefacts)

    def die(path: Path, **how: Any) -> None:
        if found := next(path.rglob("__init__.py"), None):
            found.unlink()
            raise Crash(str(path))
        rmtree(path, **how)

    world.blobs.clock.sleep(after_s)
    monkeypatch.setattr(shutil, "rmtree", die)
    with pytest.raises(Crash):
        cache.folder.evict(make_room=True)
    monkeypatch.undo()
    killed(cache.folder)
    with LibraryCache(world.cache()).pinned(artefacts) as libraries:
        assert (libraries.unpacked[0].folder / "fast" / "__init__.py").exists()
    world.cache().folder.evict(make_room=True)
    assert unpacked(world) == set()


def test_idle_blobs_are_evicted_if_the_disk_is_full_during_an_extraction(
    world: CacheWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    libraries = LibraryCache(world.cache())
    held(libraries, shipped(world, "first"))
    extractall = ZipFile.extractall

    def full_while_the_first_is_here(opened: ZipFile, folder: Path) -> None:
        extractall(opened, folder)
        if "first" in unpacked(world):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ZipFile, "extractall", full_while_the_first_is_here)
    with libraries.pinned(shipped(world, "second")):
        assert unpacked(world) == {"second"}
        with pytest.raises(StoreUnavailableError, match="full"), libraries.pinned(shipped(world, "first")):
            pytest.fail("it was taken for unpacked")
        assert unpacked(world) == {"second"}
