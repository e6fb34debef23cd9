"""Records read from a store are untrusted: a fault raises one clear error and nothing becomes visible."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.errors import (
    InvalidInputError,
    MalformedRecordError,
    RecordVersionError,
    UploadGoneError,
)
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.ids import with_short_id
from lockgate.storage_core.stores.local.store import LocalStore
from tests.support.commit.destination import Crash, World, dying, write

Change = Callable[[dict[str, Any]], object]


def first(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["files"][0]
    return found


CHANGES: dict[str, tuple[Change, str]] = {
    "another version": (lambda d: d.update(version=2), "field version is 2"),
    "another record type": (lambda d: d.update(record="plan"), "plan"),
    "an unknown field": (lambda d: d.update(extra=1), "extra"),
    "a field is missing": (lambda d: d.pop("task_id"), "task_id"),
    "a negative number of rows": (lambda d: first(d).update(rows=-1), "rows"),
    "a negative size": (lambda d: first(d)["upload"].update(size=-1), "size"),
    "a wrong size": (lambda d: first(d)["upload"].update(size=99), "field size"),
    "a key outside the destination": (lambda d: first(d)["upload"].update(key="../../x"), "leave"),
    "a key of another job": (lambda d: first(d)["upload"].update(key="a-aaaaaaaaaa.csv"), "field key"),
    "a hidden key": (lambda d: first(d).update(path="_lockgate/log/x"), "field key"),
    "reordered parts": (lambda d: first(d)["upload"]["parts"][0].update(number=2), "numbered"),
    "a damaged key": (lambda d: d.update(jnb_id=d.pop("job_id")), "unknown field"),
    "another job": (lambda d: d.update(job_id="other-g1"), "field job_id is other-g1"),
    "another task": (lambda d: d.update(task_id="u"), "task_id"),
}


@pytest.mark.parametrize("fault", CHANGES)
def test_a_malformed_pending_set_fails_the_job_before_anything_is_visible(world: World, fault: str) -> None:
    change, word = CHANGES[fault]
    job = world.open_job("sales")
    write(job, "t", {"a.csv": b"1"})
    key = job._folder.pending_set_key("t", next(job.pending_sets()).attempt_id)  # type: ignore[arg-type]
    document = json.loads(world.store.get(key))
    change(document)
    world.store.put(key, json.dumps(document).encode())
    with pytest.raises(MalformedRecordError, match=word) as raised:
        job.commit()
    assert key in str(raised.value)
    is_newer = fault in {"another version", "an unknown field"}
    assert isinstance(raised.value, RecordVersionError) == is_newer
    assert job.phase() is JobPhase.FAILED
    assert (world.visible(), world.live(), world.open_uploads()) == ({}, {}, [])


def test_a_tampered_plan_is_refused_and_changes_nothing(world: World) -> None:
    job = world.open_job("sales")
    write(job, "t", {"a.csv": b"1"})

    def die(name: str) -> None:
        if name == "complete.complete.before":
            raise Crash(name)

    FAILPOINTS.observer = dying(die)
    try:
        with pytest.raises(Crash):
            job.commit()
    finally:
        FAILPOINTS.observer = None
    for page in world.store.pages(job._folder.key("plan/shards/")):
        for info in page:
            world.store.put(info.key, world.store.get(info.key).replace(b"a-", b"b-"))
    with pytest.raises(MalformedRecordError, match="another digest"):
        world.attach(job.job_id).commit()
    assert world.visible() == {}
    assert job.phase() is JobPhase.DECIDED


def test_a_missing_upload_is_detected_before_the_decision(world: World) -> None:
    job = world.open_job("sales")
    write(job, "t", {"a.csv": b"1", "b.csv": b"2"})
    (pending, _) = next(job.pending_sets()).files
    world.store.abort_upload(pending.key, pending.upload.upload_id)
    with pytest.raises(UploadGoneError, match="1 of its 2 pending uploads are gone"):
        job.commit()
    assert job.phase() is JobPhase.FAILED
    assert (world.visible(), world.open_uploads()) == ({}, [])


def test_uploads_that_a_listing_lacks_are_not_called_gone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = world.open_job("sales")
    write(job, "t", {"a.csv": b"1", "b.csv": b"2"})
    monkeypatch.setattr(LocalStore, "upload_pages", lambda *_, **__: iter(()))
    job.commit()
    assert world.visible() == {"a.csv": b"1", "b.csv": b"2"}


def test_an_upload_lost_after_the_decision_reverts_the_job_and_keeps_existing_data(
    world: World,
) -> None:
    from lockgate.storage_core.errors import JobFailedError
    from lockgate.storage_core.failpoints import FAILPOINTS

    world.run("old", {"old.csv": b"old"})
    job = world.open_job("sales", mode="replace")
    write(job, "t", {"a.csv": b"1", "b.csv": b"2"})
    pending = next(job.pending_sets()).files[1]

    def lose(name: str) -> None:
        if name == "decide.create.after":
            FAILPOINTS.observer = None
            world.store.abort_upload(pending.key, pending.upload.upload_id)

    FAILPOINTS.observer = lose
    try:
        with pytest.raises(JobFailedError, match="1 pending files were lost for good"):
            job.commit()
    finally:
        FAILPOINTS.observer = None
    assert job.phase() is JobPhase.FAILED
    assert world.visible() == {"old.csv": b"old"}
    assert world.live() == world.keys()
    report = job._folder.report()
    assert report is not None
    assert {file.result for file in report.files} == {"lost", "reverted"}


def test_the_short_id_is_inserted_before_the_first_suffix() -> None:
    short: Any = "abcdefghij"
    assert with_short_id("day=1/a.csv.gz", short) == "day=1/a-abcdefghij.csv.gz"
    assert with_short_id("x.y/plain", short) == "x.y/plain-abcdefghij"


def test_a_task_whose_pending_set_would_be_too_long_to_read_back_is_refused_with_the_remedy(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world.open_job("sales") as job:
        attempt = job.attempt("t")
        for number in range(20):
            attempt.open(f"{number}.csv").close()
        monkeypatch.setattr("lockgate.storage_core.commit.records.codec.MAX_RECORD_BYTES", 2000)
        with pytest.raises(InvalidInputError, match="nothing was written; write fewer files per task"):
            attempt.commit()
        assert list(job.pending_sets()) == []
        attempt.abort()
        assert world.open_uploads() == []
        write(job, "fewer", {"a.csv": b"1"})
        monkeypatch.undo()
        job.commit()
    assert world.visible() == {"a.csv": b"1"}
