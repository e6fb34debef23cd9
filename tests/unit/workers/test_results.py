"""Tests of large results of a third-party application's tasks, with a worker thread and a memory broker."""

from __future__ import annotations

from typing import Any

import pytest
from celery import chain, group

from lockgate.storage_core.blobs.claim_check import ClaimCheck
from lockgate.storage_core.errors import ObjectNotFoundError, OutcomeUnknownError
from lockgate.workers.offload import results
from tests.support.workers.celery_worker import wait_until
from tests.support.workers.third_party_app import BIG, PATIENCE_S, Guest, files_of, got, length


def test_a_large_result_is_released_after_it_was_read(guest: Guest) -> None:
    grow = guest.task(lambda count: "r" * count)
    with guest.working():
        sent = grow.delay(5_000)
        wait_until(sent.ready, PATIENCE_S)
        assert guest.owners == [f"receiver:result:{sent.id}"]
        assert got(sent) == "r" * 5_000
        assert guest.owners == []
        assert got(guest.app.AsyncResult(sent.id)) == "r" * 5_000
        assert isinstance(sent.backend.get(sent.backend.get_key_for_task(sent.id)), str | bytes)

        members = group(grow.s(5_000), grow.s(6_000)).apply_async()
        assert [len(value) for value in got(members)] == [5_000, 6_000]
        assert guest.owners == []


def test_a_failure_of_any_size_is_stored_by_the_backend_itself(guest: Guest) -> None:
    def fail() -> None:
        raise ValueError(BIG)

    sent = guest.task(fail).delay()
    with guest.working(), pytest.raises(ValueError, match=BIG):
        got(sent)
    assert guest.blobs == []


def test_a_forgotten_result_is_released_unread(guest: Guest) -> None:
    grow = guest.task(lambda count: "r" * count)
    with guest.working():
        sent = grow.delay(5_000)
        wait_until(sent.ready, PATIENCE_S)
    sent.forget()
    assert guest.owners == []


def lose_all(guest: Guest) -> str:
    """Delete the bytes of all blobs and the cached results; return the key of the last blob."""
    for blob in guest.blobs:
        files_of(guest).delete(blob.job_id, blob.blob_key)  # type: ignore[arg-type]
    guest.app.backend._cache.clear()
    return blob.blob_key


def test_reading_a_missing_result_raises_although_its_task_has_succeeded(guest: Guest) -> None:
    grow = guest.task(lambda count: "r" * count)
    with guest.working():
        sent = grow.delay(5_000)
        wait_until(lambda: len(guest.blobs) == 1 and sent.ready(), PATIENCE_S)
    blob_key = lose_all(guest)
    late = guest.app.AsyncResult(sent.id)
    assert late.state == "SUCCESS"
    for _ in range(2):
        with pytest.raises(ObjectNotFoundError, match=blob_key):
            got(late)
    assert isinstance(late.get(propagate=False), ObjectNotFoundError)
    assert isinstance(late.get(PATIENCE_S, False, 0.01), ObjectNotFoundError)
    with pytest.raises(ObjectNotFoundError, match=blob_key):
        got(guest.app.GroupResult("one", [guest.app.AsyncResult(sent.id)]))


def test_the_result_of_a_chain_survives_the_release_of_its_first_tasks_result(guest: Guest) -> None:
    grow = guest.task(lambda count: "r" * count)
    measure = guest.task(length)
    sent = chain(grow.s(5_000), measure.s()).apply_async()
    with guest.working():
        assert len(got(sent.parent)) == 5_000
        wait_until(sent.ready, PATIENCE_S)
        guest.arguments_are_let_go()
    lose_all(guest)
    again = guest.app.AsyncResult(sent.id, parent=guest.app.AsyncResult(sent.parent.id))
    assert got(again) == 5_000


def test_a_result_without_expiry_does_not_expire(guest: Guest) -> None:
    guest.app.conf.result_expires = None
    grow = guest.task(lambda count: "r" * count)
    sent = grow.delay(5_000)
    with guest.working():
        wait_until(sent.ready, PATIENCE_S)
    assert [(one.owner, one.until_s) for one in guest.references] == [(f"receiver:result:{sent.id}", None)]


def test_a_task_succeeds_even_if_its_result_cannot_be_stored_as_a_blob(
    guest: Guest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise OutcomeUnknownError("the blob server is away")

    grow = guest.task(lambda count: "r" * count)
    calls: list[str] = []
    sent = grow.apply_async(
        (5_000,),
        link=guest.task(lambda value: calls.append("after")).s(),
        link_error=guest.task(lambda: calls.append("error")).si(),
    )
    offload = ClaimCheck.offload

    def without_results(self: ClaimCheck, data: bytes, *, owner: str, **options: Any) -> Any:
        return (away if ":result:" in owner else offload)(self, data, owner=owner, **options)

    warnings: list[str] = []
    monkeypatch.setattr(ClaimCheck, "offload", without_results)
    monkeypatch.setattr(results.LOG, "warning", lambda text, *of: warnings.append(text % of))
    with guest.working():
        assert got(sent) == "r" * 5_000
        wait_until(lambda: calls != [], PATIENCE_S)
    assert calls == ["after"]
    assert warnings == [
        f"the result of task {sent.id} is stored whole in the result backend: the blob server is away"
    ]
