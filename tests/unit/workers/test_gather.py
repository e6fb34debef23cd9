"""Tests of the wait for workers' results during a broker outage, with a clock controlled by the test."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from celery import states
from celery.canvas import Signature
from celery.exceptions import TaskRevokedError
from kombu.exceptions import OperationalError
from redis.exceptions import ConnectionError as NoBroker
from redis.exceptions import OutOfMemoryError, ReadOnlyError, ResponseError

from lockgate.storage_core.errors import (
    JournalVersionError,
    LockgateError,
    MissingPartError,
    NoWorkerError,
    OutcomeUnknownError,
)
from lockgate.workers import gather
from lockgate.workers.broker.broker_keys import HeldMessages
from lockgate.workers.celery_app import app
from tests.support.workers.celery_worker import memory_broker

GRACE_S = 60.0


@dataclass
class Workers:
    """A fake broker with workers and a clock; each sleep and each poll advances the clock.

    Attributes:
        broker_away: Start and end of the broker's outage.
        workers_away: Start and end of the time in which the workers are disconnected.
        answer_s: Time at which the task's result is available.
        refuse_until_s: Time until which workers of another version refuse the task.
        is_running: Whether a worker says that it runs the task.
        preemptions: Number of times that a worker's shutdown interrupts the task before that.
        is_silent: Whether the worker is too busy to answer.
        held: What the broker says that it holds; None: it is no Redis.
        needed_sends: How often the task must be sent until a worker gets it.
    """

    broker_away: tuple[float, float] = (0.0, 0.0)
    workers_away: tuple[float, float] = (0.0, 0.0)
    answer_s: float = 10.0
    refuse_until_s: float = 0.0
    is_running: bool = False
    preemptions: int = 0
    is_silent: bool = False
    held: HeldMessages | None = None
    needed_sends: int = 1
    now_s: float = 0.0
    sends: int = 0
    declared: list[str] = field(default_factory=list)

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def get_many(self, ids: Iterable[str], **_: Any) -> Iterator[tuple[str, dict[str, Any]]]:
        self.now_s += gather.POLL_S
        self._ask_broker()
        if self.preemptions:
            self.preemptions -= 1
            cut_off = TaskRevokedError("terminated")
            yield from ((task, {"status": states.REVOKED, "result": cut_off}) for task in ids)
        elif self.now_s < self.refuse_until_s:
            yield from ((task, {"status": states.FAILURE, "result": self.refusal}) for task in ids)
        elif self.now_s >= self.answer_s and self.sends >= self.needed_sends:
            yield from ((task, {"result": {"task": task}}) for task in ids)

    def answers(self) -> dict[str, Any]:
        self.now_s += gather.PING_S
        self._ask_broker()
        is_silent = self.is_silent or _within(self.now_s, self.workers_away)
        return {} if is_silent else {"worker": [{"name": "commit"}]}

    def send(self, todo: deque[tuple[int, Signature]], out: dict[str, int], expires_s: float) -> None:
        """Send all tasks immediately; the broker is available."""
        assert expires_s > 0
        while todo:
            position, _ = todo.popleft()
            out[f"task-{position}"] = position
            self.sends += 1

    def are_running(self, _ids: Iterable[str]) -> bool:
        return self.is_running

    @property
    def refusal(self) -> Exception:
        return JournalVersionError("the journal has version 2")

    def _ask_broker(self) -> None:
        if _within(self.now_s, self.broker_away):
            raise NoBroker("away")


def _within(now_s: float, span: tuple[float, float]) -> bool:
    return span[0] <= now_s < span[1]


Gather = Callable[[Workers], list[tuple[int, dict[str, Any] | LockgateError]]]


@pytest.fixture
def gathered(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gather]:
    def gather_from(workers: Workers) -> list[tuple[int, dict[str, Any] | LockgateError]]:
        monkeypatch.setattr(gather, "time", workers)
        monkeypatch.setattr(gather, "_send", workers.send)
        monkeypatch.setattr(gather, "_answers", workers.answers)
        monkeypatch.setattr(gather, "held_messages", lambda *_: workers.held)
        monkeypatch.setattr(gather, "_declare", workers.declared.append)
        monkeypatch.setattr(gather, "_are_running", workers.are_running)
        monkeypatch.setattr(type(app), "backend", workers)
        monkeypatch.setattr(app.control, "revoke", lambda _ids: None)
        task = app.signature("task")
        found = gather.gather([task], work="work", queue="commit", timeout_s=3_600, grace_s=GRACE_S)
        return list(found)

    with memory_broker():
        yield gather_from


def test_a_task_interrupted_by_a_worker_shutdown_is_sent_again_and_is_not_a_failure(
    gathered: Gather,
) -> None:
    assert gathered(Workers(preemptions=3)) == [(0, {"task": "task-0"})]


def test_a_task_that_a_worker_of_another_version_refuses_is_sent_to_another(gathered: Gather) -> None:
    assert gathered(Workers(refuse_until_s=GRACE_S - 1)) == [(0, {"task": "task-0"})]


def test_workers_that_all_refuse_are_reported_as_of_another_version(gathered: Gather) -> None:
    workers = Workers(refuse_until_s=10_000.0)
    with pytest.raises(MissingPartError, match=r"upgrade the workers .*: the journal has version 2"):
        gathered(workers)
    assert workers.now_s < 2 * GRACE_S


def test_a_task_that_was_refused_and_runs_elsewhere_is_waited_for(gathered: Gather) -> None:
    workers = Workers(refuse_until_s=5.0, answer_s=5 * GRACE_S, is_running=True)
    assert gathered(workers) == [(0, {"task": "task-0"})]


@pytest.mark.parametrize("broker_is_back_s", [50.0, 70.0])
def test_workers_have_time_to_reconnect_after_a_broker_outage(
    gathered: Gather, broker_is_back_s: float
) -> None:
    back_s = broker_is_back_s + GRACE_S / 2
    workers = Workers((20.0, broker_is_back_s), (20.0, back_s), answer_s=back_s + 2)
    assert gathered(workers) == [(0, {"task": "task-0"})]


def test_workers_that_do_not_reconnect_are_reported_as_missing(gathered: Gather) -> None:
    workers = Workers((20.0, 70.0), (20.0, 10_000.0), answer_s=10_000.0)
    with pytest.raises(NoWorkerError, match="no worker listens on queue 'commit'"):
        gathered(workers)
    assert workers.now_s < 70.0 + 2 * GRACE_S


def test_the_wait_for_an_unreachable_broker_ends_after_the_grace_period(gathered: Gather) -> None:
    workers = Workers((20.0, 10_000.0), answer_s=10_000.0)
    with pytest.raises(OutcomeUnknownError, match=r"the broker \S+ gives no answer"):
        gathered(workers)
    assert workers.now_s < 20.0 + GRACE_S + 1


def holds(*tasks: str, taken: int, workers: int) -> HeldMessages:
    return HeldMessages(frozenset(tasks), taken, workers)


def test_a_worker_that_is_too_busy_to_answer_is_waited_for(gathered: Gather) -> None:
    busy = Workers(is_silent=True, answer_s=10 * GRACE_S, held=holds("task-0", taken=1, workers=1))
    assert gathered(busy) == [(0, {"task": "task-0"})]
    assert busy.sends == 1


@pytest.mark.parametrize(("taken", "workers"), [(0, 1), (1, 0)], ids=["idle", "killed at work"])
def test_a_worker_that_is_idle_or_not_connected_is_not_taken_for_a_busy_one(
    gathered: Gather, taken: int, workers: int
) -> None:
    gone = Workers(is_silent=True, answer_s=10_000.0, held=holds("task-0", taken=taken, workers=workers))
    with pytest.raises(NoWorkerError, match="no worker listens on queue 'commit'"):
        gathered(gone)
    assert gone.now_s < 2 * GRACE_S


def test_a_message_that_the_broker_has_lost_is_sent_again(gathered: Gather) -> None:
    flushed = Workers(needed_sends=2, held=holds("another's", taken=0, workers=1))
    assert gathered(flushed) == [(0, {"task": "task-0"})]
    assert (flushed.sends, flushed.declared) == (2, ["commit"])
    assert flushed.now_s < 2 * GRACE_S


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        (ReadOnlyError("You can't write against a read only replica."), "READONLY: .* name its primary"),
        (OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), "OOM: its memory is full"),
        (ResponseError("NOPERM no permissions"), "NOPERM no permissions$"),
    ],
)
def test_a_broker_that_refuses_is_not_reported_as_one_that_is_away(refusal: ResponseError, said: str) -> None:
    with memory_broker():
        assert re.search(rf"the broker memory://\S* refuses: .*{said}", gather._no_answer(refusal))
        wrapped = OperationalError("as Kombu raises it")
        wrapped.__cause__ = refusal
        assert gather._no_answer(wrapped) == gather._no_answer(refusal)
