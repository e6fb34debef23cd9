"""A local store adopts and moves finished files without a copy, and reports what obstructs a key."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lockgate.storage_core.errors import InvalidInputError, UnsupportedStoreError, UploadGoneError
from lockgate.storage_core.ids import new_token
from lockgate.storage_core.stores.file_tree import FileTree
from lockgate.storage_core.stores.instrumented import InstrumentedStore, instrument
from lockgate.storage_core.stores.local.store import LocalStore


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "dest")


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    path = tmp_path / "finished"
    path.write_bytes(b"12345")
    return path


def open_uploads(store: LocalStore) -> list[str]:
    return [info.key for page in store.upload_pages() for info in page]


def test_an_adopted_file_is_pending_and_becomes_the_object_without_a_copy(
    store: LocalStore, finished: Path
) -> None:
    pending = store.adopt_file(finished, "a/b", new_token())
    assert (pending.size, [part.size for part in pending.parts]) == (5, [5])
    assert open_uploads(store) == ["a/b"]
    assert not store.holds(pending)
    store.complete_upload(pending)
    assert store.holds(pending)
    assert (store.root / "a/b").samefile(finished)
    assert open_uploads(store) == []


def test_an_aborted_adopted_file_stays_in_its_place(store: LocalStore, finished: Path) -> None:
    pending = store.adopt_file(finished, "a/b", new_token())
    store.abort_upload(pending.key, pending.upload_id)
    assert open_uploads(store) == []
    assert finished.read_bytes() == b"12345"


def test_an_adopted_file_survives_the_removal_of_its_first_name(store: LocalStore, finished: Path) -> None:
    pending = store.adopt_file(finished, "a/b", new_token())
    finished.unlink()
    store.complete_upload(pending)
    assert store.get("a/b") == b"12345"


def test_a_file_adopted_twice_becomes_one_object_and_leaves_no_upload(
    store: LocalStore, finished: Path
) -> None:
    first, second = (store.adopt_file(finished, "a/b", new_token()) for _ in range(2))
    store.complete_upload(first, if_absent=True)
    store.complete_upload(second, if_absent=True)
    assert store.holds(first)
    assert store.holds(second)
    assert open_uploads(store) == []


def test_a_file_modified_after_its_adoption_cannot_be_completed(store: LocalStore, finished: Path) -> None:
    pending = store.adopt_file(finished, "a/b", new_token())
    finished.write_bytes(b"123456")
    with pytest.raises(UploadGoneError, match="written to after it was sealed"):
        store.complete_upload(pending)


def test_a_link_a_directory_and_a_pipe_are_not_adopted(
    store: LocalStore, finished: Path, tmp_path: Path
) -> None:
    link, directory, pipe = (tmp_path / name for name in ("link", "directory", "pipe"))
    link.symlink_to(finished)
    directory.mkdir()
    os.mkfifo(pipe)
    for local in (link, directory, pipe):
        with pytest.raises(InvalidInputError):
            store.adopt_file(local, "a/b", new_token())
    assert open_uploads(store) == []


def test_a_file_on_another_file_system_is_refused_so_that_it_is_copied(
    store: LocalStore, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*names: object, **folders: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(UnsupportedStoreError):
        store.adopt_file(finished, "a/b", new_token())


def test_the_obstruction_of_a_key_is_named(store: LocalStore) -> None:
    store.put("file", b"")
    store.put("_hidden", b"")
    store.put("folder/a", b"")
    (store.root / "empty").mkdir()
    (store.root / "link").symlink_to("folder")
    keys = ["file/x", "file/x/y", "_hidden/x", "folder", "empty", "link/x", "folder/b", "folder/a", "new/x"]
    assert [tuple(obstacle) for obstacle in store.obstacles(keys)] == [
        ("file/x", "file"),
        ("file/x/y", "file"),
        ("_hidden/x", "_hidden"),
        ("folder", "folder/"),
        ("empty", "empty/"),
        ("link/x", "link"),
    ]


def test_an_instrumented_local_store_is_a_file_tree_and_any_other_is_not(
    store: LocalStore, finished: Path
) -> None:
    tree = instrument(store)
    assert isinstance(tree, FileTree)
    tree.adopt_file(finished, "a", new_token())
    assert tree.obstacles(["a/b"]) == []
    assert tree.requests == {"adopt": 1, "obstacles": 1}
    assert not isinstance(InstrumentedStore(store), FileTree)
