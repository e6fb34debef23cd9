"""Unavailable, hanging and full stores: calls that need them raise an error, all others succeed."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest

from lockgate.storage_core.blobs.keys import NO_JOB
from lockgate.storage_core.blobs.server.blob_server import BlobServer
from lockgate.storage_core.blobs.storage.local import LocalBlobs
from lockgate.storage_core.errors import LockgateError, OutcomeUnknownError, StoreUnavailableError
from lockgate.storage_core.failpoints import FAILPOINTS
from tests.support.blobs.remains import everything, sweep_twice
from tests.support.blobs.server import INTERVAL_S, PART_BYTES, BlobWorld, blob_world, key_of

DATA = b"bytes of a blob " * 1_000


@pytest.mark.parametrize("size", [10, 2 * PART_BYTES], ids=["one request", "parts"])
@pytest.mark.parametrize(("nth", "action"), [(1, "lost"), (2, "refuse")])
def test_a_put_that_the_ha_store_rejects_fails_and_leaves_nothing(
    world: BlobWorld, size: int, nth: int, action: str
) -> None:
    verb = "put" if size == 10 else "part"
    side = "before" if action == "refuse" else "after"
    if nth == 2 and verb == "put":
        FAILPOINTS.arm({"blob-ha.put.before": "refuse", "blob-ha-delete.delete_many.before": "refuse"})
    else:
        FAILPOINTS.arm({f"blob-ha.{verb}.{side}": f"{action}@{nth}"})
    with pytest.raises((StoreUnavailableError, OutcomeUnknownError), match="on purpose"):
        world.server.put(b"x" * size, owners=["viewer:1"])
    FAILPOINTS.arm({})
    assert world.server.page() == []
    again = world.server.put(b"x" * size, owners=["viewer:1"])
    assert world.server.get(*key_of(again)) == b"x" * size
    world.server.drop_owner("viewer:1")
    for _ in range(3):
        sweep_twice(world)
    assert everything(world) == []


def test_parts_that_could_not_be_aborted_are_deleted_by_a_sweep_while_the_server_runs(
    world: BlobWorld,
) -> None:
    world.server.put(b"before")
    FAILPOINTS.arm({"blob-ha.part.before": "refuse", "blob-ha.abort.before": "refuse"})
    with pytest.raises(OutcomeUnknownError, match="left to the sweep"):
        world.server.put(b"x" * (2 * PART_BYTES))
    FAILPOINTS.arm({})
    assert world.store is not None
    assert len([info for page in world.store.upload_pages() for info in page]) == 1
    world.server.put(b"after")
    for _ in range(3):
        world.clock.sleep(INTERVAL_S / 2)
        world.server.sets.renewer.renew()
        world.server.sweep(dry_run=False)
    assert [info for page in world.store.upload_pages() for info in page] == []


def test_while_the_ha_store_is_down_local_blobs_are_served_and_accepted(world: BlobWorld) -> None:
    blob = world.server.put(DATA)
    points = ("put", "get", "head", "list", "delete_many", "uploads")
    FAILPOINTS.arm({f"{step}.{verb}.before": "refuse" for step in ("blob-ha", "idle") for verb in points})
    assert world.server.get(*key_of(blob)) == DATA
    message = world.server.put(b"message", guarantee="recreatable")
    assert world.server.get(*key_of(message)) == b"message"
    world.server.stores.local.delete(*key_of(blob))
    with pytest.raises(StoreUnavailableError, match="on purpose"):
        world.server.get(*key_of(blob))


def test_a_hanging_ha_store_delays_only_the_calls_that_need_it(
    world: BlobWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = world.server.put(DATA)
    hangs, gives_up = threading.Event(), threading.Event()
    assert world.store is not None

    def put(key: str, data: bytes, *, if_version: str | None = None) -> None:
        hangs.set()
        gives_up.wait()
        raise OutcomeUnknownError(f"put {key} gave no answer in 30 s; it may be there; try again")

    monkeypatch.setattr(world.store, "put", put)
    with ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(world.server.put, b"hangs")
        hangs.wait()
        assert world.server.get(*key_of(here)) == DATA
        message = world.server.put(b"message", guarantee="recreatable")
        assert world.server.sweep(dry_run=False).problems == ()
        gives_up.set()
        with pytest.raises(OutcomeUnknownError, match="no answer"):
            hanging.result()
    assert world.server.get(*key_of(message)) == b"message"
    assert list((world.server.stores.local.path / ".incoming").iterdir()) == []
    for _ in range(3):
        sweep_twice(world)
    assert everything(world) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of one MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "lockgate-test", str(folder)],
        capture_output=True,
        check=False,
        timeout=60,
    )
    if mounted.returncode:
        pytest.skip("this user may not mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True, timeout=60)


def test_a_full_disk_fails_the_put_and_leaves_nothing(small_disk: Path, tmp_path: Path) -> None:
    local = LocalBlobs(small_disk / "blobs")
    with blob_world(tmp_path) as world:
        world.server = BlobServer(local, world.server.stores.ha, world.journal, clock=world.clock)
        before = world.server.put(b"x" * 300_000, owners=["viewer:1"])
        # The last piece fits only in part: the disk writes that part and reports only its length.
        with pytest.raises(StoreUnavailableError, match="full"):
            world.server.put(b"y" * 100_000 for _ in range(8))
        assert list((local.path / ".incoming").iterdir()) == []
        assert [found.blob_key for found in local.blobs(NO_JOB)] == [before.blob_key]
        assert len(world.server.page()) == 1
        after = world.server.put(b"z" * 300_000)
        assert world.server.get(*key_of(after)) == b"z" * 300_000


@pytest.mark.slow
def test_a_disk_that_is_full_at_any_sync_or_rename_fails_the_put_and_leaves_nothing_permanently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed: list[str] = []
    for number in count():
        passed.clear()
        with blob_world(tmp_path / f"world-{number}", f"sqlite:///{tmp_path}/{number}.db") as world:
            with monkeypatch.context() as patch:
                for name in ("fsync", "rename", "mkdir"):
                    patch.setattr(os, name, _full_at(number, name, getattr(os, name), passed))
                try:
                    blob = world.server.put(DATA)
                except LockgateError:
                    assert world.server.page() == [], (number, passed)
                else:
                    assert world.server.get(*key_of(blob)) == DATA
            incoming = world.server.stores.local.path / ".incoming"
            assert not incoming.exists() or list(incoming.iterdir()) == [], (number, passed)
            for _ in range(3):
                sweep_twice(world)
            assert everything(world) == [], (number, passed)
        if len(passed) <= number:
            break
    assert {"fsync", "rename", "mkdir"} <= set(passed)


def _full_at(number: int, name: str, call: Callable[..., object], passed: list[str]) -> Callable[..., object]:
    def full(*arguments: object, **named: object) -> object:
        passed.append(name)
        if len(passed) == number + 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return call(*arguments, **named)

    return full
