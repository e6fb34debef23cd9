"""Large results of somebody's tasks, with a worker in a thread and a broker in memory."""

from __future__ import annotations

import pytest
from celery import group

from storage_core.errors import ObjectNotFoundError
from tests.celery_world import wait_until
from tests.guest_world import BIG, PATIENCE_S, Guest, files_of, got


def test_a_large_result_is_let_go_once_it_was_read(guest: Guest) -> None:
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


def test_a_failure_is_told_by_the_backend_itself_however_long(guest: Guest) -> None:
    def fail() -> None:
        raise ValueError(BIG)

    sent = guest.task(fail).delay()
    with guest.working(), pytest.raises(ValueError, match=BIG):
        got(sent)
    assert guest.blobs == []


def test_a_forgotten_result_is_let_go_unread(guest: Guest) -> None:
    grow = guest.task(lambda count: "r" * count)
    with guest.working():
        sent = grow.delay(5_000)
        wait_until(sent.ready, PATIENCE_S)
    sent.forget()
    assert guest.owners == []


def test_a_lost_result_is_a_failure_that_says_so(guest: Guest) -> None:
    grow = guest.task(lambda count: "r" * count)
    with guest.working():
        sent = grow.delay(5_000)
        wait_until(lambda: len(guest.blobs) == 1 and sent.ready(), PATIENCE_S)
    (blob,) = guest.blobs
    files_of(guest).delete(blob.job_id, blob.blob_key)  # type: ignore[arg-type]
    guest.app.backend._cache.clear()
    late = guest.app.AsyncResult(sent.id)
    assert late.state == "FAILURE"
    with pytest.raises(ObjectNotFoundError, match=blob.blob_key):
        got(late)
