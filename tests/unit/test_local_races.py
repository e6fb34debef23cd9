"""Two processes at one upload of a local store: what the lock of its key keeps apart."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from storage_core.ids import new_token
from storage_core.stores.local import LocalStore


def test_once_an_abort_has_returned_nothing_of_the_upload_becomes_visible_any_more(
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
            arrived.set()  # it is about to wait for the completion that is under way
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
