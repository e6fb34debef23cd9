"""Damage of any kind in any store is detected at first use, and healed from another copy or reported."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lockgate.storage_core.blobs.keys import BlobKey
from lockgate.storage_core.errors import CorruptBlobError, LockgateError
from tests.support.blobs.cache import CacheWorld, cache_world
from tests.support.blobs.server import BlobWorld, damage, key_of

DATA = b"some bytes that hash to their key"
OTHER = b"other bytes, of another length, with another key"

Harm = Callable[[Path, Path], None]
"""Called with the file to damage and an intact file with other bytes."""


def cut_off(path: Path, other: Path) -> None:
    os.truncate(path, 5)


def make_a_folder(path: Path, other: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "inside").write_bytes(DATA)


def link_to_other_bytes(path: Path, other: Path) -> None:
    path.unlink()
    path.symlink_to(other)


HARMS: tuple[Harm, ...] = (
    lambda path, other: damage(path),
    cut_off,
    make_a_folder,
    link_to_other_bytes,
)
NAMES = ("a bit flipped", "cut off", "a folder", "a link")
harms = pytest.mark.parametrize("harm", HARMS, ids=NAMES)
before_use = pytest.mark.parametrize("is_used", [False, True], ids=["before its first use", "after it"])


@pytest.fixture
def caches(tmp_path: Path) -> Iterator[CacheWorld]:
    with cache_world(tmp_path) as world:
        yield world


def local_file(world: BlobWorld, key: tuple[str, BlobKey]) -> Path:
    return world.server.stores.local.path_of(*key)


def object_file(world: BlobWorld, key: tuple[str, BlobKey]) -> Path:
    return world.root / "ha" / key[0] / key[1]


def leftovers(world: BlobWorld) -> list[Path]:
    return list((world.server.stores.local.path / ".incoming").iterdir())


@harms
@before_use
def test_a_damaged_local_file_is_healed_from_the_ha_store(
    world: BlobWorld, harm: Harm, is_used: bool
) -> None:
    key, other = (key_of(world.server.put(data, job_id="sales")) for data in (DATA, OTHER))
    harm(local_file(world, key), local_file(world, other))
    if not is_used:
        world.restart()
    assert world.server.get(*key) == DATA
    assert world.server.get(*other) == OTHER
    assert not local_file(world, key).is_symlink()
    assert local_file(world, key).read_bytes() == DATA
    assert leftovers(world) == []


@harms
def test_a_damaged_file_that_is_the_only_copy_raises_an_error_and_never_returns_other_bytes(
    world: BlobWorld, harm: Harm
) -> None:
    key, other = (
        key_of(world.server.put(data, job_id="sales", guarantee="recreatable")) for data in (DATA, OTHER)
    )
    harm(local_file(world, key), local_file(world, other))
    with pytest.raises(CorruptBlobError, match=f"{key[1]}.* it was damaged, and removed"):
        world.server.get(*key)
    assert not os.path.lexists(local_file(world, key))


@harms
def test_a_damaged_object_is_never_returned_as_the_blob(world: BlobWorld, harm: Harm) -> None:
    key, other = (key_of(world.server.put(data, job_id="sales")) for data in (DATA, OTHER))
    harm(object_file(world, key), object_file(world, other))
    assert world.server.get(*key) == DATA
    world.server.stores.local.delete(*key)
    with pytest.raises(LockgateError, match=str(key[1])):
        world.server.get(*key)
    assert leftovers(world) == []


@harms
@before_use
def test_a_damaged_file_of_a_cache_is_fetched_again(caches: CacheWorld, harm: Harm, is_used: bool) -> None:
    blob, other = caches.put(DATA), caches.put(OTHER)
    caches.is_kept = True
    cache = caches.cache()
    for one in (blob, other):
        cache.get(*key_of(one))
    if not is_used:
        cache.close()
    harm(caches.file_of(blob), caches.file_of(other))
    if not is_used:
        cache = caches.cache()
    assert cache.get(*key_of(blob)) == DATA
    assert cache.get(*key_of(other)) == OTHER
    assert caches.file_of(blob).read_bytes() == DATA
    assert caches.under_way() == []


@harms
def test_a_cache_skips_a_damaged_object_and_fetches_the_servers_file(caches: CacheWorld, harm: Harm) -> None:
    blob, other = caches.put(DATA), caches.put(OTHER)
    caches.ha = caches.server.stores.ha
    harm(object_file(caches.blobs, key_of(blob)), object_file(caches.blobs, key_of(other)))
    assert caches.cache().get(*key_of(blob)) == DATA
    assert caches.server.fetched == [blob.blob_key]
    assert caches.under_way() == []


def test_damage_that_keeps_size_and_times_is_detected_by_the_receiver_and_healed(world: BlobWorld) -> None:
    key = key_of(world.server.put(DATA, job_id="sales"))
    world.server.get(*key)
    damage(local_file(world, key))
    world.server.stores.local._note_verified(local_file(world, key))  # as if size and times had not changed
    assert world.server.get(*key) == DATA
    assert local_file(world, key).read_bytes() == DATA


def test_a_reader_that_detected_damage_does_not_remove_a_file_that_another_has_healed(
    world: BlobWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = key_of(world.server.put(DATA, job_id="sales"))
    damage(local_file(world, key))
    local = world.server.stores.local
    forget = local._delete_seen

    def healed_meanwhile(path: Path, signature: tuple[int, int, int, int]) -> None:
        path.unlink()
        shutil.copy(object_file(world, key), path)
        forget(path, signature)

    monkeypatch.setattr(local, "_delete_seen", healed_meanwhile)
    with pytest.raises(CorruptBlobError):
        local.verified(*key)
    assert local.verified(*key).read_bytes() == DATA


def test_bytes_that_differ_from_the_verified_bytes_are_not_served(
    world: BlobWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = world.server.put(b"abc", owners=["viewer:1"])
    monkeypatch.setattr(Path, "read_bytes", lambda _: b"abd")  # a failing disk or memory
    with pytest.raises(CorruptBlobError, match="nothing was returned"):
        world.server.get(*key_of(blob))
