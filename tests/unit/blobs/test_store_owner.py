"""Blob stores belong to the journal that first put, listed or deleted there; every other one is refused."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from lockgate.storage_core.blobs.blob_protocol import BlobInfo
from lockgate.storage_core.blobs.server.blob_server import BlobServer
from lockgate.storage_core.blobs.storage.blob_stores import OWNER
from lockgate.storage_core.blobs.storage.ha import HaBlobs
from lockgate.storage_core.errors import ConflictError, StoreUnavailableError
from lockgate.storage_core.journal import open_journal
from lockgate.storage_core.stores import Store
from lockgate.storage_core.stores.local.store import LocalStore
from tests.support.blobs.server import INTERVAL_S, BlobWorld, key_of, new_server

LARGE = bytes(6 * 1024 * 1024)
"""More than a part: an early upload of several parts."""


@contextmanager
def other_server(
    world: BlobWorld, store: Store | None, *, folder: Path | None = None
) -> Iterator[BlobServer]:
    """Open a server with another journal, on its own disk unless a folder is named."""
    with (
        open_journal(f"sqlite:///{world.root}/other.db", clock=world.clock) as journal,
        new_server(folder or world.root / "other", store, journal, world.clock) as server,
    ):
        yield server


def objects(store: Store | None) -> list[str]:
    assert store is not None
    return [info.key for page in store.pages() for info in page if info.key != OWNER]


def test_a_process_with_another_journal_deletes_no_blob_that_was_put_before_any_listing(
    world: BlobWorld,
) -> None:
    kept = world.server.put(b"library", job_id="sales", owners=["job"])
    with other_server(world, world.store) as other:
        reports = []
        for _ in range(3):
            reports.append(other.sweep(dry_run=False))
            world.clock.sleep(INTERVAL_S)
    assert world.is_in_ha(kept)
    assert world.server.get(*key_of(kept)) == b"library"
    assert all("belong to journal" in report.problems[0] for report in reports)


@pytest.mark.parametrize("data", [b"small", LARGE], ids=["small", "parts"])
def test_a_put_under_another_journal_is_refused_and_leaves_nothing(world: BlobWorld, data: bytes) -> None:
    kept = world.server.put(b"library", job_id="sales", owners=["job"])
    with other_server(world, world.store) as other:
        with pytest.raises(ConflictError, match="LOCKGATE_BLOB_STORE_URL"):
            other.put(data, job_id="sales", owners=["job"])
        assert list(other.page()) == []
        assert list(other.stores.local.blobs("sales")) == []
    assert objects(world.store) == [f"{kept.job_id}/{kept.blob_key}"]


def test_a_put_into_the_directory_of_another_journal_is_refused(world: BlobWorld) -> None:
    world.server.put(b"message", guarantee="recreatable", owners=["job"])
    with (
        other_server(world, None, folder=world.root) as other,
        pytest.raises(ConflictError, match="LOCKGATE_JOURNAL_URL"),
    ):
        other.put(b"message", guarantee="recreatable", owners=["job"])


@pytest.mark.parametrize("is_local", [True, False], ids=["local", "ha"])
def test_the_end_of_a_job_under_another_journal_deletes_no_blob_of_the_same_job_id(
    world: BlobWorld, is_local: bool
) -> None:
    kept = world.server.put(b"library", job_id="sales", owners=["job"])
    folder, store = (world.root, None) if is_local else (None, world.store)
    with other_server(world, store, folder=folder) as other:
        with pytest.raises(ConflictError, match="belong to journal"):
            other.finish("sales")
        assert "belong to journal" in " ".join(other.sweep(dry_run=False, orphans=False).problems)
    assert world.is_local(kept)
    assert world.is_in_ha(kept)


def test_of_two_journals_that_put_at_once_one_is_refused(world: BlobWorld) -> None:
    """Both looked for an owner before either of them claimed the store."""
    assert world.store is not None
    with other_server(world, world.store) as other:
        claim = other.stores.owner.claim_ha

        class ClaimedMeanwhile(LocalStore):
            def create(self, key: str, data: bytes) -> object:  # type: ignore[override]
                claim()
                return super().create(key, data)

        ha = HaBlobs(ClaimedMeanwhile(world.root / "ha"), part_bytes=1, parallelism=1)
        with (
            BlobServer(world.server.stores.local, ha, world.journal, clock=world.clock) as first,
            pytest.raises(ConflictError, match="belong to journal"),
        ):
            first.put(b"library", job_id="sales", owners=["job"])
        assert other.put(b"library", job_id="sales", owners=["job"]).size_bytes == 7
    assert len(objects(world.store)) == 1


def test_a_directory_without_hard_links_has_one_owner(
    world: BlobWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    with other_server(world, None, folder=world.root) as other, ThreadPoolExecutor(2) as threads:
        puts = [
            threads.submit(server.put, b"log", guarantee="recreatable", owners=["job"])
            for server in (world.server, other)
        ]
        assert [type(put.exception()) for put in puts].count(ConflictError) == 1
    assert [path.name for path in world.server.stores.local.path.iterdir()].count(OWNER) == 1


def test_a_blob_that_needs_no_ha_store_is_put_while_its_owner_cannot_be_read(world: BlobWorld) -> None:
    def away(*_: object, **__: object) -> bytes:
        raise StoreUnavailableError("the store is away")

    class Away(LocalStore):
        get = away  # type: ignore[assignment]

    ha = HaBlobs(Away(world.root / "ha"), part_bytes=1, parallelism=1)
    with BlobServer(world.server.stores.local, ha, world.journal, clock=world.clock) as server:
        assert server.put(b"log", guarantee="recreatable", owners=["job"]).size_bytes == 3
        with pytest.raises(StoreUnavailableError):
            server.put(b"library", owners=["job"])
    assert objects(world.store) == []


def test_on_a_store_without_conditional_calls_the_first_journal_owns_the_blobs(
    world: BlobWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert world.store is not None
    plain = msgspec.structs.replace(world.store.capabilities, conditional_create=False)
    monkeypatch.setattr(type(world.store), "capabilities", plain, raising=False)
    kept: BlobInfo = world.server.put(b"library", job_id="sales", owners=["job"])
    with other_server(world, world.store) as other, pytest.raises(ConflictError):
        other.put(b"library", job_id="sales", owners=["job"])
    assert world.store.get(OWNER).decode() == world.journal.identity
    assert world.server.get(*key_of(kept)) == b"library"
