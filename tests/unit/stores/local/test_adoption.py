"""Finished files that a store in a directory takes as they lie, and what is in a key's way there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lockgate.storage_core.errors import InvalidInputError, UnsupportedStoreError, UploadGoneError
from lockgate.storage_core.ids import new_token
from lockgate.storage_core.stores.file_tree import FileTree, folders_of
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


def test_an_adopted_file_that_is_aborted_stays_where_it_was(store: LocalStore, finished: Path) -> None:
    pending = store.adopt_file(finished, "a/b", new_token())
    store.abort_upload(pending.key, pending.upload_id)
    assert open_uploads(store) == []
    assert finished.read_bytes() == b"12345"


def test_an_adopted_file_outlives_its_first_name(store: LocalStore, finished: Path) -> None:
    pending = store.adopt_file(finished, "a/b", new_token())
    finished.unlink()
    store.complete_upload(pending)
    assert store.get("a/b") == b"12345"


def test_a_file_that_is_adopted_twice_is_one_object_and_leaves_no_upload(
    store: LocalStore, finished: Path
) -> None:
    first, second = (store.adopt_file(finished, "a/b", new_token()) for _ in range(2))
    store.complete_upload(first, if_absent=True)
    store.complete_upload(second, if_absent=True)
    assert store.holds(first)
    assert store.holds(second)
    assert open_uploads(store) == []


def test_a_file_that_is_written_to_after_it_was_adopted_cannot_be_completed(
    store: LocalStore, finished: Path
) -> None:
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


def test_a_file_of_another_file_system_is_refused_so_that_it_is_copied(
    store: LocalStore, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*names: object, **folders: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(UnsupportedStoreError):
        store.adopt_file(finished, "a/b", new_token())


def test_what_stands_in_a_key_s_way_is_named(store: LocalStore) -> None:
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


def test_a_file_is_moved_once_however_often_it_is_asked_for(store: LocalStore) -> None:
    version = store.put("folder/a", b"1").version
    for _ in range(2):
        assert store.move_file("folder/a", "_lockgate/aside/a", version)
    assert (store.get("_lockgate/aside/a"), store.head("_lockgate/aside/a").version) == (b"1", version)
    assert store.obstacles(["folder"]) == []
    assert store.move_file("_lockgate/aside/a", "folder/a", version)
    assert store.get("folder/a") == b"1"


def test_a_move_that_a_crash_cut_short_is_finished(store: LocalStore) -> None:
    version = store.put("a", b"1").version
    (store.root / "b").hardlink_to(store.root / "a")
    assert store.move_file("a", "b", version)
    assert [path.name for path in store.root.iterdir() if path.is_file()] == ["b"]


def test_a_file_that_changed_and_a_name_that_is_taken_are_left_as_they_are(store: LocalStore) -> None:
    version = store.put("a", b"1").version
    store.put("taken", b"2")
    store.put("folder/x", b"3")
    assert not store.move_file("a", "taken", version)
    assert not store.move_file("a", "folder", version)
    assert not store.move_file("a", "b", "another version")
    assert not store.move_file("none", "b", version)
    with pytest.raises(InvalidInputError, match="a parent of it is a file"):
        store.move_file("a", "taken/b", version)
    assert {path: store.get(path) for path in ("a", "taken", "folder/x")} == {
        "a": b"1",
        "taken": b"2",
        "folder/x": b"3",
    }


def test_a_watched_directory_is_a_file_tree_and_another_watched_store_is_none(
    store: LocalStore, finished: Path
) -> None:
    tree = instrument(store)
    assert isinstance(tree, FileTree)
    tree.adopt_file(finished, "a", new_token())
    assert tree.obstacles(["a/b"]) == []
    version = tree.put("b", b"1").version
    assert tree.move_file("b", "c", version)
    assert tree.requests == {"adopt": 1, "obstacles": 1, "put": 1, "move": 1}
    assert not isinstance(InstrumentedStore(store), FileTree)


def test_the_folders_of_a_key_are_those_it_lies_in() -> None:
    assert list(folders_of("a/b/c")) == ["a", "a/b"]
    assert list(folders_of("a")) == []
