"""Many uploads become visible together, and what is unclear of one is resolved without the others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lockgate.storage_core.commit.uploads.upload_completion import Completions
from lockgate.storage_core.errors import AccessDeniedError, OutcomeUnknownError
from lockgate.storage_core.failpoints import FAILPOINTS, step
from lockgate.storage_core.stores import PendingUpload, Store
from tests.contract.stores_calls import keys, open_uploads, upload
from tests.support.fake_s3 import faults
from tests.support.s3.destination import S3World, s3_world

FILES = 12


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3World]:
    with s3_world(tmp_path, monkeypatch) as world:
        yield world


@pytest.fixture
def store(s3: S3World) -> Store:
    return s3.driver.store


@pytest.fixture
def pendings(store: Store) -> list[PendingUpload]:
    return [upload(store, f"{number:02d}", b"x") for number in range(FILES)]


def completed(
    s3: S3World, store: Store, pendings: list[PendingUpload], *, verify: bool = False
) -> dict[str, str | None]:
    completions = Completions(store, if_absent=False, verify=verify, clock=s3.driver.clock)
    with step("complete"):
        return dict(completions.run(pendings, 4, 4))


def visible(pendings: list[PendingUpload]) -> dict[str, str | None]:
    return {pending.key: None for pending in pendings}


@pytest.mark.parametrize("verify", [False, True])
def test_all_become_visible_and_one_that_is_gone_is_lost(
    s3: S3World, store: Store, pendings: list[PendingUpload], *, verify: bool
) -> None:
    store.abort_upload("05", pendings[5].upload_id)
    found = completed(s3, store, pendings, verify=verify)
    lost = found.pop("05")
    assert lost is not None
    assert "NoSuchUpload" in lost
    assert found == visible(pendings[:5] + pendings[6:])
    assert keys(store) == sorted(found)


def test_no_thread_is_started_for_them(
    s3: S3World, store: Store, pendings: list[PendingUpload], monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    start = threading.Thread.start

    def noted(thread: threading.Thread) -> None:
        names.append(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", noted)
    assert completed(s3, store, pendings) == visible(pendings)
    assert [name for name in names if name.startswith("lockgate_")] == []


@pytest.mark.parametrize("point", ["before", "after"])
@pytest.mark.parametrize("action", ["lost", "refuse"])
def test_a_lost_answer_and_a_refusal_are_resolved(
    s3: S3World, store: Store, pendings: list[PendingUpload], point: str, action: str
) -> None:
    FAILPOINTS.arm({f"complete.complete.{point}": f"{action}@3"})
    try:
        found = completed(s3, store, pendings)
    finally:
        FAILPOINTS.arm({})
    assert found == visible(pendings)
    assert open_uploads(store) == []


def test_a_store_that_refuses_all_is_not_asked_for_each_file(s3: S3World, store: Store) -> None:
    many = [upload(store, f"{number:03d}", b"x") for number in range(60)]
    s3.fake.faults.at(faults.SLOW_DOWN, operation="CompleteMultipartUpload", times=10**6)
    s3.fake.forget()
    began_s = s3.driver.clock.now_s()
    with pytest.raises(OutcomeUnknownError, match="tried 5 times"):
        completed(s3, store, many)
    asked = [seen.key for seen in s3.fake.seen if seen.operation == "CompleteMultipartUpload"]
    assert len(set(asked)) <= 4 + 4
    assert s3.driver.clock.now_s() - began_s >= 0.2 + 0.4
    s3.fake.faults.clear()
    assert completed(s3, store, many) == visible(many)


def test_an_error_of_the_reader_leaves_no_completion_under_way(
    s3: S3World, store: Store, pendings: list[PendingUpload]
) -> None:
    completions = Completions(store, if_absent=False, verify=False, clock=s3.driver.clock).run(pendings, 4, 4)
    s3.fake.forget()
    with closing(completions):
        next(completions)
    visible_now = len(keys(store))
    sent = [seen for seen in s3.fake.seen if seen.operation == "CompleteMultipartUpload"]
    assert visible_now == len(sent) == 4


def test_a_refusal_that_is_not_about_a_file_ends_the_commit_and_loses_none(
    s3: S3World, store: Store, pendings: list[PendingUpload]
) -> None:
    denied = faults.Fault("403", status=403, code="AccessDenied")
    s3.fake.faults.at(denied, operation="CompleteMultipartUpload", nth=3)
    with pytest.raises(AccessDeniedError):
        completed(s3, store, pendings)
    assert completed(s3, store, pendings) == visible(pendings)
