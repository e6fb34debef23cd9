"""Behaviour specific to local stores: links, folders, permissions, errors of the disk."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockgate.storage_core.errors import (
    AccessDeniedError,
    InvalidInputError,
    LockgateError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    StoreUnavailableError,
    UnsupportedStoreError,
    UploadGoneError,
)
from lockgate.storage_core.ids import new_token
from lockgate.storage_core.stores import PendingUpload
from lockgate.storage_core.stores.local.rooted_dir import RootedDir
from lockgate.storage_core.stores.local.store import LocalStore


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "dest"


@pytest.fixture
def store(root: Path) -> LocalStore:
    return LocalStore(root)


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


def keys(store: LocalStore, prefix: str = "") -> list[str]:
    return [found.key for page in store.pages(prefix) for found in page]


def open_uploads(store: LocalStore) -> list[str]:
    return [found.key for page in store.upload_pages() for found in page]


def upload(store: LocalStore, key: str, data: bytes = b"data") -> PendingUpload:
    token = new_token()
    upload_id = store.begin_upload(key, token)
    return store.seal_upload(key, upload_id, token, [store.put_part(key, upload_id, 1, 0, data)])


def hidden_files(root: Path) -> list[Path]:
    return [path for path in (root / "_lockgate" / "uploads").rglob("*") if path.is_file()]


class TestRoot:
    def test_the_root_is_created_only_by_the_first_write(self, tmp_path: Path) -> None:
        store = LocalStore(tmp_path / "a" / "b")

        assert keys(store) == []
        assert open_uploads(store) == []
        store.delete("x")
        assert store.delete_many(["x"]) == []
        with pytest.raises(ObjectNotFoundError):
            store.get("x")
        assert list(tmp_path.iterdir()) == []

        store.create("x", b"")
        assert (tmp_path / "a" / "b" / "x").is_file()

    @pytest.mark.parametrize("below", [".", "sub"])
    def test_a_root_that_is_or_is_below_a_file_is_refused(self, tmp_path: Path, below: str) -> None:
        (tmp_path / "file").write_text("")

        with pytest.raises(InvalidInputError, match="file"):
            LocalStore(tmp_path / "file" / below).create("x", b"")
        assert (tmp_path / "file").read_text() == ""

    def test_a_root_that_is_a_dangling_link_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(tmp_path / "nowhere")

        with pytest.raises(InvalidInputError, match="dead link"):
            LocalStore(tmp_path / "link")

    def test_a_root_that_is_a_link_to_a_directory_keeps_its_name(self, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "real")
        store = LocalStore(tmp_path / "link")

        store.create("a", b"x")
        assert (tmp_path / "real" / "a").read_bytes() == b"x"
        assert store.url == f"file://{tmp_path}/link"


class TestLinks:
    @pytest.fixture
    def outside(self, tmp_path: Path, root: Path) -> Path:
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "secret").write_text("secret")
        root.mkdir()
        (root / "link").symlink_to(outside)
        (root / "leaf").symlink_to(outside / "secret")
        return outside

    def test_no_call_follows_a_link_out_of_the_root(self, store: LocalStore, outside: Path) -> None:
        calls = [
            lambda: store.put("link/new", b""),
            lambda: store.create("link/new", b""),
            lambda: store.get("link/secret"),
            lambda: store.head("link/secret"),
            lambda: store.delete("link/secret"),
            lambda: store.complete_upload(upload(store, "link/new")),
            lambda: store.get("leaf"),
        ]
        for call in calls:
            with pytest.raises(InvalidInputError, match="symbolic link; replace the link"):
                call()
        assert [path.name for path in outside.iterdir()] == ["secret"]
        assert (outside / "secret").read_text() == "secret"

    def test_a_link_under_the_hidden_folder_is_not_followed_either(
        self, store: LocalStore, root: Path, outside: Path
    ) -> None:
        (root / "_lockgate").mkdir()
        (root / "_lockgate" / "uploads").symlink_to(outside)

        with pytest.raises(InvalidInputError, match="symbolic link"):
            store.begin_upload("a", new_token())
        assert [path.name for path in outside.iterdir()] == ["secret"]

    def test_a_link_is_listed_and_deleted_as_itself(self, store: LocalStore, outside: Path) -> None:
        assert keys(store) == ["leaf", "link"]

        store.delete("leaf", if_version=store.head("leaf").version)
        store.delete("link")
        assert keys(store) == []
        assert (outside / "secret").read_text() == "secret"

    def test_a_put_replaces_a_link_and_not_its_target(self, store: LocalStore, outside: Path) -> None:
        store.put("leaf", b"ours")

        assert store.get("leaf") == b"ours"
        assert (outside / "secret").read_text() == "secret"


class TestNames:
    def test_a_file_and_a_folder_cannot_share_a_name(self, store: LocalStore) -> None:
        store.create("a", b"")
        store.create("b/c", b"")

        with pytest.raises(InvalidInputError, match="a parent of it is a file"):
            store.create("a/below", b"")
        for call in (store.create, store.put):
            with pytest.raises(InvalidInputError, match="it is a directory"):
                call("b", b"")
        with pytest.raises(InvalidInputError, match="it is a directory"):
            store.complete_upload(upload(store, "b"))
        assert keys(store) == ["a", "b/c"]

    def test_a_segment_too_long_for_the_file_system_is_refused(self, store: LocalStore) -> None:
        with pytest.raises(InvalidInputError, match="too long"):
            store.create("x" * 256, b"")

    @pytest.mark.parametrize("folder", ["uploads", "tmp", "locks"])
    def test_hidden_files_can_be_neither_listed_nor_named(self, store: LocalStore, folder: str) -> None:
        upload(store, "a")
        store.put("b", b"")

        assert keys(store) == ["b"]
        assert keys(store, "_lockgate/") == []
        assert keys(store, f"_lockgate/{folder}/") == []
        for key in (f"_lockgate/{folder}", f"_lockgate/{folder}/x", f"nested/_lockgate/{folder}/x"):
            with pytest.raises(InvalidInputError, match="hidden"):
                store.put(key, b"")

    def test_hidden_files_of_a_nested_destination_stay_hidden(self, store: LocalStore, root: Path) -> None:
        upload(LocalStore(root / "below"), "a")

        assert keys(store) == []

    def test_a_name_that_is_not_utf8_is_listed_and_can_be_deleted(
        self, store: LocalStore, root: Path
    ) -> None:
        store.create("a", b"")
        (root / os.fsdecode(b"bad-\xff")).write_text("")

        assert keys(store) == ["a", os.fsdecode(b"bad-\xff")]
        with pytest.raises(InvalidInputError, match="control character"):
            store.put(os.fsdecode(b"bad-\xff"), b"")
        store.delete(os.fsdecode(b"bad-\xff"))
        assert keys(store) == ["a"]

    @pytest.mark.parametrize("other", ["part-1", "DAY/x"])
    def test_names_that_differ_in_case_are_refused_on_a_case_insensitive_file_system(
        self, store: LocalStore, monkeypatch: pytest.MonkeyPatch, other: str
    ) -> None:
        store.create("Part-1", b"upper")
        store.create("day/x", b"")
        # This file system distinguishes them; the next store is made to believe that it does not.
        folding = LocalStore(store.root)
        monkeypatch.setattr("lockgate.storage_core.stores.local.rooted_dir._folds_case", lambda root: True)

        for call in (
            lambda: folding.create(other, b""),
            lambda: folding.put(other, b""),
            lambda: folding.get(other),
            lambda: folding.head(other),
            lambda: folding.delete(other),
            lambda: folding.complete_upload(upload(folding, other)),
        ):
            with pytest.raises(InvalidInputError, match="differ in case only"):
                call()
        assert folding.get("Part-1") == b"upper"

    def test_special_files_are_not_objects(self, store: LocalStore, root: Path) -> None:
        root.mkdir()
        os.mkfifo(root / "pipe")

        assert keys(store) == []
        with pytest.raises(ObjectNotFoundError):
            store.get("pipe")


class TestPermissions:
    def test_visible_files_honour_the_umask_and_hidden_ones_are_private(
        self, store: LocalStore, root: Path, umask: None
    ) -> None:
        store.create("record", b"")
        store.complete_upload(upload(store, "data"))
        store.put("_lockgate/jobs/job.json", b"")
        upload(store, "pending")
        store.delete("record")

        def mode(name: str) -> int:
            return stat.S_IMODE((root / name).stat().st_mode)

        assert mode("data") == mode("_lockgate/jobs/job.json") == 0o640
        assert mode("_lockgate") == mode("_lockgate/jobs") == 0o750
        for folder in ("uploads", "tmp", "locks"):
            assert mode(f"_lockgate/{folder}") == 0o700

    def test_emptied_folders_are_removed_and_the_root_is_kept(self, store: LocalStore, root: Path) -> None:
        store.create("day=1/hour=2/a", b"")
        store.create("_lockgate/jobs/j/job.json", b"")

        assert store.delete_many(["day=1/hour=2/a", "_lockgate/jobs/j/job.json"]) == []
        assert [path.name for path in root.iterdir()] == ["_lockgate"]
        assert not (root / "_lockgate" / "jobs").exists()


class TestRefusals:
    @pytest.mark.parametrize(
        ("number", "error", "remedy"),
        [
            (errno.EACCES, AccessDeniedError, "permission"),
            (errno.EROFS, AccessDeniedError, "read-only"),
            (errno.ENOSPC, StoreUnavailableError, "free space"),
            (errno.EDQUOT, StoreUnavailableError, "quota"),
            (errno.EXDEV, UnsupportedStoreError, "mounted"),
            (errno.EMFILE, StoreUnavailableError, "try again"),
            (errno.EIO, OutcomeUnknownError, "recovery"),
        ],
    )
    def test_the_error_type_of_a_disk_refusal_determines_what_clean_up_may_do(
        self,
        store: LocalStore,
        monkeypatch: pytest.MonkeyPatch,
        number: int,
        error: type[LockgateError],
        remedy: str,
    ) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as patched:
            patched.setattr(os, "link", refuse)
            with pytest.raises(error, match=f"create file://.*/marker: .*{remedy}"):
                store.create("marker", b"")
        assert keys(store) == []
        assert list((store.root / "_lockgate" / "tmp").iterdir()) == []

    def test_a_folder_that_cannot_be_synced_leaves_the_outcome_unknown(
        self, store: LocalStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.create("first", b"")
        real = os.fsync

        def fail_on_folders(file: int) -> None:
            if stat.S_ISDIR(os.fstat(file).st_mode):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            real(file)

        pending = upload(store, "third")
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", fail_on_folders)
            with pytest.raises(OutcomeUnknownError, match="recovery"):
                store.create("second", b"")
            with pytest.raises(OutcomeUnknownError):
                store.complete_upload(pending)
        assert keys(store) == ["first", "second", "third"]
        assert store.holds(pending)

    def test_a_full_disk_while_writing_a_temporary_file_leaves_nothing(
        self, store: LocalStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patched:
            patched.setattr(os, "write", full)
            with pytest.raises(StoreUnavailableError, match="nothing was changed; the file system is full"):
                store.put("a", b"data")
        assert keys(store) == []
        assert list((store.root / "_lockgate" / "tmp").iterdir()) == []


class TestFolderRaces:
    def test_a_folder_removed_between_its_creation_and_the_link_is_created_again(self, root: Path) -> None:
        tree = RootedDir(root)
        tries: list[int] = []

        def act(folder: int) -> None:
            if not tries:
                (root / "a" / "b").rmdir()
            tries.append(folder)
            os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=folder))

        tree.within(["a", "b"], act)
        assert len(tries) == 2
        assert (root / "a" / "b" / "file").exists()


class TestUploadCrashes:
    @pytest.fixture
    def half_completed(self, store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> PendingUpload:
        """Return an upload in the state after a crash between the link and the unlink."""
        pending = upload(store, "day=1/p")

        def crash(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(os, "unlink", crash)
            with pytest.raises(KeyboardInterrupt):
                store.complete_upload(pending)
        assert len(hidden_files(store.root)) == 1
        return pending

    def test_the_object_is_recognised_and_completing_again_cleans_up(
        self, store: LocalStore, half_completed: PendingUpload
    ) -> None:
        assert store.holds(half_completed)
        assert store.get("day=1/p") == b"data"

        store.complete_upload(half_completed)
        assert hidden_files(store.root) == []
        assert store.holds(half_completed)

    def test_a_conditional_completion_recognises_its_own_object(
        self, store: LocalStore, half_completed: PendingUpload
    ) -> None:
        store.complete_upload(half_completed, if_absent=True)
        assert hidden_files(store.root) == []

    def test_a_listing_of_uploads_does_not_include_it(
        self, store: LocalStore, half_completed: PendingUpload
    ) -> None:
        assert open_uploads(store) == []
        assert hidden_files(store.root) == []
        assert store.holds(half_completed)

    def test_an_abort_removes_the_hidden_name_only(
        self, store: LocalStore, half_completed: PendingUpload
    ) -> None:
        store.abort_upload(half_completed.key, half_completed.upload_id)

        assert hidden_files(store.root) == []
        assert store.get("day=1/p") == b"data"
        assert store.holds(half_completed)

    def test_an_upload_modified_after_it_was_sealed_is_not_completed(self, store: LocalStore) -> None:
        pending = upload(store, "a", b"sealed")
        store.put_part("a", pending.upload_id, 1, 0, b"zombie")

        with pytest.raises(UploadGoneError, match="after it was sealed"):
            store.complete_upload(pending)
        assert keys(store) == []

    def test_parts_that_were_never_written_are_not_sealed(self, store: LocalStore) -> None:
        written_elsewhere = upload(store, "b", b"0123456789").parts
        upload_id = store.begin_upload("a", new_token())

        with pytest.raises(InvalidInputError, match="fewer were written"):
            store.seal_upload("a", upload_id, new_token(), written_elsewhere)

    def test_temporary_files_of_a_crashed_writer_are_removed_after_a_day(
        self, store: LocalStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.put("a", b"")
        left = store.root / "_lockgate" / "tmp" / "left"
        left.write_text("")
        written_s = time.time()
        for age_s, is_there in ((86_000, True), (90_000, False)):
            monkeypatch.setattr(time, "time", lambda age_s=age_s: written_s + age_s)
            open_uploads(store)
            assert left.exists() == is_there
