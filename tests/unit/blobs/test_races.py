"""Races between sweeps, puts, gets, forks and suspended processes lose no live byte and leave none behind."""

from __future__ import annotations

import fcntl
import os
from typing import IO

import pytest

from lockgate.storage_core.blobs.keys import BlobKey
from lockgate.storage_core.errors import LockgateError, ObjectNotFoundError
from lockgate.storage_core.failpoints import FAILPOINTS
from tests.support.blobs.remains import everything, sweep_twice
from tests.support.blobs.server import INTERVAL_S, BlobWorld, key_of

DATA = b"bytes of a blob " * 1_000


def test_a_get_does_not_restore_a_blob_that_a_sweep_deletes(
    world: BlobWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = world.server.put(DATA)
    world.clock.sleep(INTERVAL_S)
    assert world.server.stores.ha is not None
    delete = world.server.stores.ha.delete

    def after_a_get(blobs: list[tuple[str, BlobKey]]) -> list[tuple[str, BlobKey]]:
        assert not world.is_local(blob)
        assert world.is_in_ha(blob)
        with pytest.raises(ObjectNotFoundError):
            world.server.get(*key_of(blob))
        return delete(blobs)

    monkeypatch.setattr(world.server.stores.ha, "delete", after_a_get)
    assert world.server.sweep(dry_run=False).deleted.blobs == 1
    assert everything(world) == []


def test_two_concurrent_deletes_of_a_folder_both_succeed(
    world: BlobWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        world.server.put(b"%d" % number, job_id="sales", owners=["job"])
    unlink = os.unlink
    taken: list[object] = []

    def after_another(path: object, **where: object) -> None:
        if not taken:
            taken.append(path)
            unlink(path, **where)  # type: ignore[arg-type]
        unlink(path, **where)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "unlink", after_another)
    world.server.stores.local.delete_job("sales")
    assert taken
    assert not (world.server.stores.local.path / "sales").exists()


def test_a_sweep_does_not_drop_an_incoming_file_before_it_is_locked(
    world: BlobWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock
    dropped: list[int] = []

    def after_a_sweep(file: IO[bytes], mode: int) -> None:
        if not dropped:
            dropped.append(0)  # the sweep also locks files
            dropped[0] = world.server.stores.local.delete_abandoned()
        flock(file, mode)

    world.server.put(b"before")
    monkeypatch.setattr(fcntl, "flock", after_a_sweep)
    blob = world.server.put(DATA, guarantee="recreatable")
    assert dropped == [1]
    assert world.server.get(*key_of(blob)) == DATA


def test_a_put_suspended_after_its_bytes_were_stored_is_refused_and_leaves_nothing(
    world: BlobWorld,
) -> None:
    upload_set = world.server.begin_set("sales")
    slept: list[str] = []

    def sleep(point: str) -> None:
        if point == "blob-ha.put.before" and not slept:
            slept.append(point)
            world.server.sweep(dry_run=False)
            world.clock.sleep(INTERVAL_S)
            assert world.server.sweep(dry_run=False).abandoned_sets == 1
            sweep_twice(world)
            assert everything(world) == []

    FAILPOINTS.observer = sleep
    try:
        with pytest.raises(LockgateError, match="was given up"):
            world.server.put(DATA, job_id="sales", upload_set=upload_set)
    finally:
        FAILPOINTS.observer = None
    assert slept
    assert everything(world) == []


def test_two_servers_share_a_local_store_and_neither_deletes_the_others_blobs(world: BlobWorld) -> None:
    first = world.server
    world.restart()
    second = world.server
    ours, theirs = (one.put(DATA, job_id="sales", owners=["job"]) for one in (first, second))
    assert first.get(*key_of(theirs)) == second.get(*key_of(ours)) == DATA
    second.drop(*key_of(ours), "job")
    world.clock.sleep(INTERVAL_S)
    first.sets.renewer.renew()
    assert second.sweep(dry_run=False).deleted.blobs == 1
    with pytest.raises(ObjectNotFoundError):
        first.get(*key_of(ours))
    assert first.get(*key_of(theirs)) == DATA
    first.close()


def test_a_fork_has_its_own_set_and_its_end_does_not_change_its_parents_set(world: BlobWorld) -> None:
    world.server.put(b"before")
    with world.server.sets.own._changing:  # a thread of the parent may hold it
        child = os.fork()
        if child == 0:
            blob = world.server.put(b"child's", owners=["viewer:1"])
            is_there = world.server.get(*key_of(blob)) == b"child's"
            world.server.close()
            os._exit(0 if is_there else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert world.server.get(*key_of(world.server.put(b"after"))) == b"after"
    assert len(world.server.references(owner="viewer:1")) == 1
