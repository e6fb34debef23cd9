"""Tests of large arguments of a third-party application's tasks, with a worker thread and a memory broker."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, Task, chain, chord, group
from celery.contrib.testing.worker import start_worker
from celery.exceptions import Ignore, Reject
from kombu import Exchange, Queue

from lockgate.storage_core.blobs.cache.process_cache import close_caches, configured_cache
from lockgate.storage_core.errors import CorruptBlobError, FencedError, InvalidInputError, ObjectNotFoundError
from lockgate.storage_core.settings import load_settings
from lockgate.workers.offload import install_offload
from lockgate.workers.offload.sender import GUARD, HEADER
from tests.support.blobs.http_server import served
from tests.support.blobs.server import blob_world, damage
from tests.support.workers.celery_worker import wait_until
from tests.support.workers.third_party_app import (
    BIG,
    PATIENCE_S,
    SMALL,
    Guest,
    application,
    files_of,
    got,
    length,
)

DAY_S = 86_400


def test_large_arguments_arrive_unchanged_and_are_released(guest: Guest) -> None:
    echo = guest.task(lambda *args, **kwargs: guest.calls.append((args, kwargs)))
    sent = echo.delay(BIG, 1, None, named={"a": [BIG]})
    (reference,) = guest.references
    assert reference.owner == f"receiver:{sent.id}"
    assert reference.until_s is not None
    (blob,) = guest.blobs
    assert (blob.job_id, blob.guarantee, blob.use) == ("no_job", "recreatable", "message")

    with guest.working():
        assert got(sent) is None
        guest.arguments_are_let_go()

    assert guest.calls == [((BIG, 1, None), {"named": {"a": [BIG]}})]
    assert guest.blobs[0].staged_s is not None


def test_a_message_below_the_threshold_is_unchanged(guest: Guest) -> None:
    echo = guest.task(lambda value: value)
    sent = echo.delay(SMALL)
    with (
        guest.app.connection_for_read() as connection,
        connection.SimpleQueue(guest.app.conf.task_default_queue) as queue,
    ):
        message = queue.get(timeout=PATIENCE_S)
        assert message.payload[0] == [SMALL]
        assert HEADER not in message.headers
        message.requeue()
    with guest.working():
        assert got(sent) == SMALL
    assert not (guest.settings.home_dir / "journal.db").exists()


def test_messages_of_a_job_belong_to_it_and_are_deleted_when_it_fails(guest: Guest) -> None:
    echo = guest.task(lambda value: value)
    sent = echo.apply_async((BIG,), headers={"job_id": "sales-7"})
    (blob,) = guest.blobs
    assert blob.job_id == "sales-7"
    with guest.working():
        assert got(sent) == BIG
    assert {blob.job_id for blob in guest.blobs} == {"sales-7"}

    echo.apply_async((BIG,), headers={"job_id": "sales-7"})
    configured_cache(guest.settings).origin.fail("sales-7")
    assert guest.owners == []
    echo.apply_async((BIG,), headers={"job_id": "../7"})
    assert guest.references[0].job_id == "no_job"


def test_group_members_with_equal_arguments_share_one_blob_with_a_reference_each(guest: Guest) -> None:
    measure = guest.task(length)
    sent = group(measure.s(BIG) for _ in range(3)).apply_async()
    assert len(guest.blobs) == 1
    assert len(guest.references) == 3
    with guest.working():
        assert got(sent) == [5_000] * 3
        guest.arguments_are_let_go()
    assert guest.blobs[0].staged_s is not None


def test_chains_and_chords_pass_on_large_values(guest: Guest) -> None:
    double = guest.task(lambda value, more="": value * 2 + more)
    total = guest.task(lambda values, more: sum(map(len, values)) + len(more))
    chained = chain(double.s(BIG), double.s(more=BIG), double.s()).apply_async()
    chorded = chord([double.s(BIG), double.s("a")], total.s(BIG)).apply_async()
    with guest.working():
        assert len(got(chained)) == 50_000
        assert got(chorded) == 10_000 + 2 + 5_000
        guest.arguments_are_let_go()


def test_a_retried_task_passes_its_blob_to_the_retry(guest: Guest) -> None:
    def stubborn(self: Any, value: str) -> str:
        guest.calls.append((value, list(guest.owners)))
        if len(guest.calls) < 3:
            raise self.retry(countdown=0)
        return "done"

    sent = guest.task(stubborn, bind=True).delay(BIG)
    with guest.working():
        assert got(sent) == "done"
        guest.arguments_are_let_go()
    assert [value for value, _ in guest.calls] == [BIG] * 3
    assert all(owners for _, owners in guest.calls)
    assert len(guest.blobs) == 1


def test_handlers_of_a_task_see_the_arguments(guest: Guest) -> None:
    class Watched(Task):  # type: ignore[misc]
        def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
            guest.calls.append(list(args))

        def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
            guest.calls.append(list(args))

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            guest.calls.append(self.request.args)
            return self.run(*args, **kwargs)

    sent = guest.task(length, base=Watched).delay(BIG)
    with guest.working():
        assert got(sent) == 5_000
    assert guest.calls == [[BIG]] * 3


def test_a_requeued_message_keeps_its_blob(guest: Guest) -> None:
    def unlucky(value: str) -> str:
        guest.calls.append(list(guest.owners))
        if len(guest.calls) == 1:
            raise Reject("later", requeue=True)
        return value[:1]

    sent = guest.task(unlucky).delay(BIG)
    with guest.working():
        assert got(sent) == "x"
        guest.arguments_are_let_go()
    assert guest.calls == [[f"receiver:{sent.id}"]] * 2


def test_a_remote_blob_server_serves_clients_and_workers_without_a_journal(
    tmp_path: Path, quick: None
) -> None:
    with blob_world(tmp_path) as world, served(world.server) as url:
        settings = load_settings(
            home=tmp_path / "home", journal_url="none", blob_server_url=url, celery_threshold_bytes=1_000
        )
        with application(settings) as distant:
            echo = distant.task(lambda value: value)
            sent = echo.delay(BIG)
            assert [found.owner for found in world.server.references()] == [f"receiver:{sent.id}"]
            with distant.working():
                assert got(sent) == BIG
                wait_until(lambda: not world.server.references(), PATIENCE_S)
        close_caches()


def test_blobs_of_failed_ignored_and_revoked_tasks_are_released(guest: Guest) -> None:
    def fail(value: str) -> None:
        raise ValueError(value[:1])

    def ignore(value: str) -> None:
        raise Ignore

    def done() -> int:
        return 1

    finish = guest.task(done)
    revoked = guest.task(fail).apply_async((BIG,), expires=-1)
    failed = guest.task(fail).delay(BIG)
    guest.task(ignore).delay(BIG)
    with guest.working():
        with pytest.raises(ValueError, match="x"):
            got(failed)
        assert got(finish.delay()) == 1
        guest.arguments_are_let_go()
    assert revoked.state == "REVOKED"


def test_with_early_acknowledgement_the_blob_is_released_after_it_was_read(guest: Guest) -> None:
    def look(value: str) -> list[str]:
        return [value[:1], *guest.owners]

    sent = guest.task(look, acks_late=False).delay(BIG)
    assert len(guest.owners) == 1
    with guest.working():
        assert got(sent) == ["x"]


def test_a_missing_or_damaged_blob_fails_the_task_without_calling_it(guest: Guest) -> None:
    take = guest.task(lambda *values: guest.calls.append(values))
    missing = take.delay(BIG)
    (gone,) = guest.blobs
    damaged = take.delay(BIG, 1)
    broken = next(blob for blob in guest.blobs if blob.blob_key != gone.blob_key)
    files = files_of(guest)
    files.delete(gone.job_id, gone.blob_key)
    damage(files.path_of(broken.job_id, broken.blob_key))

    with guest.working():
        with pytest.raises(ObjectNotFoundError, match=gone.blob_key):
            got(missing)
        with pytest.raises(CorruptBlobError, match=broken.blob_key):
            got(damaged)
    assert guest.calls == []


def test_a_chord_with_a_lost_blob_of_a_member_fails_without_waiting(guest: Guest) -> None:
    def keep(values: list[str]) -> None:
        guest.calls.append(values)

    first = guest.task(lambda value: value[:1])
    join = guest.task(keep)
    sent = chord([first.s(BIG), first.s("b")], join.s()).apply_async()
    (blob,) = guest.blobs
    files_of(guest).delete(blob.job_id, blob.blob_key)  # type: ignore[arg-type]
    with guest.working(), pytest.raises(Exception, match=blob.blob_key):
        got(sent)
    assert guest.calls == []


def test_a_revoked_member_ends_its_chord_with_an_offloaded_body(guest: Guest) -> None:
    def join(values: list[str], more: str) -> None:
        guest.calls.append(values)

    first = guest.task(lambda value: value)
    body = guest.task(join)
    sent = chord([first.s("a").set(expires=-1), first.s("b")], body.s(BIG)).apply_async()
    assert len(guest.blobs) == 2
    with guest.working(), pytest.raises(Exception, match="expired"):
        got(sent)
    assert guest.calls == []


def test_an_argument_that_looks_like_an_envelope_is_data(guest: Guest) -> None:
    swallow = guest.task(lambda *args, **kwargs: [list(args), kwargs])
    forged = {"job_id": "no_job", "blob_key": "0" * 64 + "-" + "0" * 32, "size_bytes": 1, "owner": "me"}
    package = {"envelope": forged, "content_type": "a", "content_encoding": "b", "has_rest": False}
    with guest.working():
        plain = swallow.delay(package, **{HEADER: package, GUARD: True})
        assert got(plain) == [[package], {HEADER: package, GUARD: True}]
        headed = swallow.apply_async((1,), {GUARD: True}, headers={HEADER: package})
        assert got(headed) == [[1], {GUARD: True}]
        kept = swallow.delay("lockgate-offloaded:{}", status="SUCCESS", task_id="1")
        assert got(kept) == [
            ["lockgate-offloaded:{}"],
            {"status": "SUCCESS", "task_id": "1"},
        ]


def test_a_worker_without_offloading_fails_the_task_without_calling_it(guest: Guest) -> None:
    def take(value: str = "") -> None:
        guest.calls.append(value)

    stranger = Celery(guest.app.main, set_as_current=False)
    stranger.conf.update(guest.app.conf.changes)
    stranger.conf.update(broker_url="memory://", result_backend="cache+memory://", result_cache_max=-1)
    stranger.task(name="stranger.take", shared=False)(take)
    sent = guest.app.send_task("stranger.take", (BIG,))
    with start_worker(stranger, pool="solo", perform_ping_check=False, shutdown_timeout=PATIENCE_S):
        wait_until(lambda: sent.state == "FAILURE", PATIENCE_S)
    assert GUARD in str(sent.result)
    assert guest.calls == []
    stranger.close()


def test_a_fanout_queue_of_another_class_is_a_broadcast_too(guest: Guest) -> None:
    everyone = Exchange(f"{guest.app.main}-all", type="fanout")
    guest.app.conf.task_queues = [Queue(f"{guest.app.main}-all-1", everyone)]
    take = guest.task(lambda value: value[:1])
    sent = take.apply_async((BIG,), queue=f"{guest.app.main}-all-1")
    with guest.app.connection_for_read() as connection:
        guest.app.amqp.queues[f"{guest.app.main}-all-1"](connection.default_channel).declare()
    again = take.apply_async((BIG,), queue=f"{guest.app.main}-all-1")
    with guest.working():
        assert got(again) == "x"
    assert {f"receiver:{sent.id}", f"receiver:{again.id}"} <= set(guest.owners)


@pytest.mark.parametrize("wait", ["eta", "naive eta", "retry"])
def test_arguments_of_a_task_with_a_late_eta_are_kept_until_it_runs(guest: Guest, wait: str) -> None:
    def later(self: Any, value: str) -> None:
        raise self.retry(countdown=3 * DAY_S)

    take = guest.task(later, bind=True)
    due = datetime.now(UTC) + timedelta(days=3)
    if wait == "retry":
        take.delay(BIG)
        with guest.working():
            wait_until(lambda: len(guest.references) == 1 and guest.owners[0].count(":") == 2, PATIENCE_S)
    else:
        take.apply_async((BIG,), eta=due.replace(tzinfo=None) if wait == "naive eta" else due)
    (reference,) = guest.references
    assert reference.until_s is not None
    assert reference.until_s - reference.taken_s == pytest.approx(4 * DAY_S, abs=PATIENCE_S)


@pytest.mark.filterwarnings("ignore:Exception raised outside body:RuntimeWarning")  # Celery's name for it
def test_an_ended_job_accepts_neither_arguments_nor_results(guest: Guest) -> None:
    grow = guest.task(lambda value, count: "r" * count)
    configured_cache(guest.settings).origin.finish("sales-7")
    with pytest.raises(FencedError, match="sales-7 has ended"):
        grow.apply_async((BIG, 1), headers={"job_id": "sales-7"})
    sent = grow.apply_async(("", 5_000), headers={"job_id": "sales-7"})
    with guest.working(), pytest.raises(FencedError, match="sales-7 has ended"):
        got(sent)
    assert guest.blobs == []


def test_without_a_journal_large_messages_are_sent_inline(tmp_path: Path, quick: None) -> None:
    settings = load_settings(home=tmp_path, journal_url="none", celery_threshold_bytes=1_000)
    with application(settings) as bare:
        echo = bare.task(lambda value: value)
        with bare.working():
            assert got(echo.delay(BIG)) == BIG
    assert not (tmp_path / "blobs").exists()


def test_an_offloaded_message_fails_in_a_worker_without_blobs(guest: Guest, tmp_path: Path) -> None:
    with application(load_settings(home=tmp_path, journal_url="none"), guest.app.main) as bare:
        bare.task(length)
        sent = guest.app.send_task(f"{guest.app.main}.length", (BIG,))
        with bare.working(), pytest.raises(InvalidInputError, match="settings of the sender"):
            got(sent)


def test_installing_twice_changes_nothing(guest: Guest) -> None:
    install_offload(guest.app, load_settings(home=guest.settings.home, celery_threshold_bytes=1))
    guest.app.send_task("some", (SMALL,))
    assert not (guest.settings.home_dir / "journal.db").exists()
