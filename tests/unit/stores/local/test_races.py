"""Two processes work on one upload of a local store, serialised by the lock of its key."""

from __future__ import annotations

import fcntl
import os
import threading
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from lockgate.storage_core.ids import new_token
from lockgate.storage_core.stores.local.store import LocalStore, _shard


def test_nothing_of_an_upload_becomes_visible_after_its_abort_has_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, token = LocalStore(tmp_path / "lake"), new_token()
    store.put("a", b"foreign")
    upload_id = store.begin_upload("a", token)
    part = store.put_part("a", upload_id, 1, 0, b"ours")
    pending = store.seal_upload("a", upload_id, token, [part])
    arrived, returned = threading.Event(), threading.Event()

    def abort() -> None:
        store.abort_upload("a", upload_id)
        returned.set()
        arrived.set()

    aborting = threading.Thread(target=abort)
    flock, rename = fcntl.flock, os.rename
    too_early: list[bool] = []

    def lock(*arguments: Any) -> None:
        if threading.current_thread() is aborting:
            arrived.set()  # it is about to wait for the completion in progress
        flock(*arguments)

    def put_in_place(*names: Any, **folders: Any) -> None:
        aborting.start()
        assert arrived.wait(10)
        too_early.append(returned.is_set())
        rename(*names, **folders)

    monkeypatch.setattr(fcntl, "flock", lock)
    monkeypatch.setattr(os, "rename", put_in_place)
    store.complete_upload(pending)
    aborting.join(10)

    assert (too_early, returned.is_set()) == ([False], True)
    assert store.holds(pending)
    assert store.get("a") == b"ours"
    assert list(store.upload_pages()) == []


ASIDE = "_lockgate/jobs/x-g1/aside/2"


def test_a_file_moved_back_and_forth_concurrently_ends_at_one_of_its_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, late = LocalStore(tmp_path / "lake"), LocalStore(tmp_path / "lake")
    version = store.put("a", b"1").version
    assert store.move_file("a", ASIDE, version)
    went_on = threading.Event()

    def move_away_again() -> None:
        late.move_file("a", ASIDE, version)
        went_on.set()

    moving = threading.Thread(target=move_away_again)
    flock, unlink = fcntl.flock, os.unlink

    def lock(file: int, how: int) -> None:
        try:
            flock(file, how | fcntl.LOCK_NB)
        except BlockingIOError:
            went_on.set()  # it gets no further while the other move is in progress
            flock(file, how)

    def unlink_the_old_name(*names: Any, **folders: Any) -> None:
        if threading.current_thread() is not moving and not moving.is_alive():
            moving.start()
            assert went_on.wait(10)
        unlink(*names, **folders)

    monkeypatch.setattr(fcntl, "flock", lock)
    monkeypatch.setattr(os, "unlink", unlink_the_old_name)
    assert store.move_file(ASIDE, "a", version)
    moving.join(10)

    assert [info.key for page in store.pages() for info in page] == [ASIDE]
    assert store.get(ASIDE) == b"1"


def test_a_file_moves_between_keys_that_share_a_lock(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "lake")
    version = store.put("a", b"1").version
    other = next(key for key in map(str, count()) if _shard(key) == _shard("a"))
    # A daemon thread: if the lock were acquired twice, it would block for ever.
    moving = threading.Thread(target=store.move_file, args=("a", other, version), daemon=True)
    moving.start()
    moving.join(10)
    assert [info.key for page in store.pages() for info in page] == [other]
