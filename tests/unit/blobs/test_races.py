"""Races between sweeps, puts, gets, forks and suspended processes lose no live byte and leave none behind."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from lockgate.storage_core.blobs.keys import BlobKey
from lockgate.storage_core.errors import LockgateError, ObjectNotFoundError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.stores.instrumented import instrument
from lockgate.storage_core.stores.local.store import LocalStore
from tests.support.blobs.remains import everything, sweep_twice
from tests.support.blobs.server import INTERVAL_S, BlobWorld, blob_world, key_of

DATA = b"bytes of a blob " * 1_000


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[BlobWorld]:
    """Return a world over a local directory, for tests that do not depend on the store."""
    with blob_world(tmp_path, store=instrument(LocalStore(tmp_path / "ha"))) as world:
        yield world


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    FAILPOINTS.arm({})


def test_a_get_does_not_restore_a_blob_that_a_sweep_deletes(
    plain: BlobWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = plain.server.put(DATA)
    plain.clock.sleep(INTERVAL_S)
    assert plain.server.holdings.ha is not None
    delete = plain.server.holdings.ha.delete

    def after_a_get(blobs: list[tuple[str, BlobKey]]) -> list[tuple[str, BlobKey]]:
        assert not plain.is_local(blob)
        assert plain.is_in_ha(blob)
        with pytest.raises(ObjectNotFoundError):
            plain.server.get(*key_of(blob))
        return delete(blobs)

    monkeypatch.setattr(plain.server.holdings.ha, "delete", after_a_get)
    assert plain.server.sweep(dry_run=False).deleted.blobs == 1
    assert everything(plain) == []


def test_two_concurrent_deletes_of_a_folder_both_succeed(
    plain: BlobWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        plain.server.put(b"%d" % number, job_id="sales", owners=["job"])
    unlink = os.unlink
    taken: list[object] = []

    def after_another(path: object, **where: object) -> None:
        if not taken:
            taken.append(path)
            unlink(path, **where)  # type: ignore[arg-type]
        unlink(path, **where)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "unlink", after_another)
    plain.server.holdings.local.delete_job("sales")
    assert taken
    assert not (plain.server.holdings.local.path / "sales").exists()


def test_a_sweep_does_not_drop_an_incoming_file_before_it_is_locked(
    plain: BlobWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock
    dropped: list[int] = []

    def after_a_sweep(file: IO[bytes], mode: int) -> None:
        if not dropped:
            dropped.append(0)  # the sweep also locks files
            dropped[0] = plain.server.holdings.local.delete_abandoned()
        flock(file, mode)

    plain.server.put(b"before")
    monkeypatch.setattr(fcntl, "flock", after_a_sweep)
    blob = plain.server.put(DATA, guarantee="recreatable")
    assert dropped == [1]
    assert plain.server.get(*key_of(blob)) == DATA


def test_a_put_suspended_past_its_sets_lease_is_refused_and_leaves_nothing(plain: BlobWorld) -> None:
    upload_set = plain.server.begin_set("sales")

    def slow() -> Iterator[bytes]:
        yield DATA
        plain.server.sweep(dry_run=False)
        plain.clock.sleep(INTERVAL_S)
        assert plain.server.sweep(dry_run=False).abandoned_sets == 1
        yield DATA

    with pytest.raises(LockgateError, match="was given up"):
        plain.server.put(slow(), job_id="sales", upload_set=upload_set)
    assert everything(plain) == []
    assert list(plain.server.holdings.local.jobs()) == []


def test_a_put_suspended_after_its_bytes_were_stored_is_refused_and_leaves_nothing(
    plain: BlobWorld,
) -> None:
    upload_set = plain.server.begin_set("sales")
    slept: list[str] = []

    def sleep(point: str) -> None:
        if point == "blob-ha.put.before" and not slept:
            slept.append(point)
            plain.server.sweep(dry_run=False)
            plain.clock.sleep(INTERVAL_S)
            assert plain.server.sweep(dry_run=False).abandoned_sets == 1
            sweep_twice(plain)
            assert everything(plain) == []

    FAILPOINTS.observer = sleep
    try:
        with pytest.raises(LockgateError, match="was given up"):
            plain.server.put(DATA, job_id="sales", upload_set=upload_set)
    finally:
        FAILPOINTS.observer = None
    assert slept
    assert everything(plain) == []


def test_two_servers_share_a_local_store_and_neither_deletes_the_others_blobs(plain: BlobWorld) -> None:
    first = plain.server
    plain.restart()
    second = plain.server
    ours, theirs = (one.put(DATA, job_id="sales", owners=["job"]) for one in (first, second))
    assert first.get(*key_of(theirs)) == second.get(*key_of(ours)) == DATA
    second.drop(*key_of(ours), "job")
    plain.clock.sleep(INTERVAL_S)
    first.sets.renewer.renew()
    assert second.sweep(dry_run=False).deleted.blobs == 1
    with pytest.raises(ObjectNotFoundError):
        first.get(*key_of(ours))
    assert first.get(*key_of(theirs)) == DATA
    first.close()


def test_a_fork_has_its_own_set_and_its_end_does_not_change_its_parents_set(plain: BlobWorld) -> None:
    plain.server.put(b"before")
    with plain.server.sets.own._changing:  # a thread of the parent may hold it
        child = os.fork()
        if child == 0:
            blob = plain.server.put(b"child's", owners=["viewer:1"])
            is_there = plain.server.get(*key_of(blob)) == b"child's"
            plain.server.close()
            os._exit(0 if is_there else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert plain.server.get(*key_of(plain.server.put(b"after"))) == b"after"
    assert len(plain.server.references(owner="viewer:1")) == 1


def test_a_set_whose_completion_got_no_response_is_complete(plain: BlobWorld) -> None:
    upload_set = plain.server.begin_set("sales")
    blob = plain.server.put(DATA, job_id="sales", upload_set=upload_set)
    FAILPOINTS.arm({"idle.journal-write.after": "lost"})
    assert plain.server.complete_set(upload_set) == 1
    FAILPOINTS.arm({})
    assert plain.staged_s(blob) == plain.clock.now_s()
    plain.server.submit("sales", [blob.blob_key])
    assert plain.owners(blob) == ["job"]
