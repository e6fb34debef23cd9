"""Send many Celery tasks in bounded windows and yield their results.

A chord is not used, because its cost grows faster than its size, nor one subscription for each task: one call
reads the results of a whole window.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from celery import states
from celery.canvas import Signature
from celery.exceptions import NotRegistered
from celery.result import denied_join_result
from kombu.exceptions import OperationalError
from redis.exceptions import OutOfMemoryError, ReadOnlyError, RedisError, ResponseError

from lockgate.storage_core.errors import (
    JournalVersionError,
    LockgateError,
    MessageVersionError,
    MissingPartError,
    NoWorkerError,
    OutcomeUnknownError,
    RecordVersionError,
)
from lockgate.storage_core.ids import new_token
from lockgate.workers.broker.broker_keys import HeldMessages, held_messages
from lockgate.workers.celery_app import QUEUES, app
from lockgate.workers.session_token import HEADER, extract

logger = logging.getLogger(__name__)

BROKER_ERRORS: Final = (OperationalError, RedisError)
WINDOW: Final = 256
"""Maximum number of unfinished messages: enough for many workers, few enough to withdraw."""
REFUSALS: Final = (JournalVersionError, MessageVersionError, RecordVersionError, NotRegistered)
"""Errors of a worker of another version: it did not begin the task, and one of this version can do it."""
REFUSED_S: Final = 1.0
"""Pause before refused tasks are sent again."""
POLL_S: Final = 0.1
PING_S: Final = 2.0
BROKER_POLL_S: Final = 0.5

Row = dict[str, Any]
"""The result of a Lockgate task."""


def dispatch(signatures: Sequence[Signature], *, work: str, expires_s: float) -> str:
    """Send tasks to the workers at once, and return the name of the batch, by which `gather` finds them.

    Args:
        signatures: Signatures of the tasks.
        work: Description for messages.
        expires_s: How long a worker may begin a task.

    Raises:
        OutcomeUnknownError: The broker does not answer; what was sent may run, which is harmless.
    """
    batch = new_token()
    try:
        with app.producer_or_acquire() as producer, denied_join_result():
            for position, signature in enumerate(signatures):
                signature.apply_async(
                    producer=producer, expires=max(expires_s, 1.0), task_id=_id_in(batch, position)
                )
    except BROKER_ERRORS as error:
        with suppress(*BROKER_ERRORS):
            withdraw(batch, len(signatures))
        raise OutcomeUnknownError(
            f"{work}: {_no_answer(error)}; some tasks may have been sent and "
            "may succeed; nothing was deleted; check that the broker runs, then run it again"
        ) from None
    return batch


def ended_in(batch: str, positions: Collection[int]) -> set[int]:
    """Return which of these tasks of a batch have ended; raises a broker's error."""
    by_id = {_id_in(batch, position): position for position in positions}
    if not by_id:
        return set()
    found = app.asker().backend.get_many(set(by_id), interval=POLL_S, max_iterations=1)
    return {by_id[task] for task, _ in found}


def withdraw(batch: str, count: int) -> None:
    """Withdraw the tasks of a batch that no worker has begun; begun tasks continue."""
    app.asker().control.revoke([_id_in(batch, position) for position in range(count)])


def is_served(queue: str) -> bool:
    """Return whether a worker listens on a queue, or may be too busy to answer; raises a broker's error."""
    answers = _answers()
    return bool(_listeners(answers, queue)) or _is_busy(held_messages(app.asker(), queue), answers)


def has_lost(batch: str, positions: Collection[int], queue: str) -> bool:
    """Return whether the broker has lost messages of tasks that have not ended; raises a broker's error."""
    return bool(_lost((_id_in(batch, position) for position in positions), held_messages(app.asker(), queue)))


def _id_in(batch: str, position: int) -> str:
    return f"{batch}-{position}"


def gather(
    signatures: Sequence[Signature],
    *,
    work: str,
    queue: str,
    timeout_s: float,
    grace_s: float,
    batch: str | None = None,
) -> Generator[tuple[int, Row | LockgateError]]:
    """Run tasks on the workers and yield the position of each and its result or error, as they end.

    A task that a worker's shutdown interrupted has not failed: it is sent again, as often as that happens. So
    is one whose message the broker has lost, which is noticed after `grace_s` without a result, and one that
    a worker of another version refused, unless no worker does any of these tasks for `grace_s`.
    Closing the generator early withdraws the tasks that no worker has begun. Begun tasks continue; every
    task's effect is idempotent.

    Args:
        signatures: Signatures of the tasks.
        work: Description for messages: `commit of job sales-g1`.
        queue: Queue of the tasks.
        timeout_s: Time limit for all of them together.
        grace_s: How long to wait without a result and without a worker on the queue. A broker that does not
            answer, or refuses, is called again for as long, and its workers then have as long to reconnect. A
            worker that is busy, as a pool `solo` that runs a task, is waited for.
        batch: Name of the batch as which the tasks were dispatched; None: they are sent now.

    Raises:
        NoWorkerError: No worker listens on the queue.
        MissingPartError: Each worker is of another version.
        OutcomeUnknownError: The time limit has passed, or the broker does not answer; begun tasks may still
            succeed.
    """
    sent = {} if batch is None else {_id_in(batch, position): position for position in range(len(signatures))}
    waiting = deque(enumerate(signatures) if batch is None else ())
    deadline = time.monotonic() + timeout_s
    patience = _Patience(work, queue, grace_s, since=time.monotonic())
    try:
        while waiting or sent:
            is_refused = False
            try:
                _send(waiting, sent, expires_s=deadline - time.monotonic())
                for task_id, meta in app.backend.get_many(set(sent), interval=POLL_S, max_iterations=1):
                    position = sent.pop(task_id)
                    if isinstance(meta.get("result"), REFUSALS):
                        waiting.append((position, signatures[position]))
                        patience.refusal, is_refused = meta["result"], True
                        continue
                    patience.renew()
                    if meta.get("status") == states.REVOKED:
                        # Its worker was shut down while it ran; the task has not failed.
                        logger.warning("%s: task %d was preempted; it is sent again", work, position + 1)
                        waiting.append((position, signatures[position]))
                    else:
                        yield position, _outcome(work, meta)
                if is_refused:
                    logger.warning("%s: tasks are sent to another worker: %s", work, patience.refusal)
                    time.sleep(REFUSED_S)
                for task_id in patience.check(sent):
                    position = sent.pop(task_id)
                    waiting.append((position, signatures[position]))
            except BROKER_ERRORS as error:
                patience.wait_for_broker(error, sent=len(sent))
            else:
                patience.broker_answers()
            if (waiting or sent) and time.monotonic() > deadline:
                raise OutcomeUnknownError(
                    f"{work}: {len(sent) + len(waiting)} of {len(signatures)} tasks gave no answer in "
                    f"{timeout_s:.0f} s; those not begun were withdrawn, the others may still succeed; "
                    "look at the workers' logs, then run it again: completed tasks are not repeated"
                )
    finally:
        if sent:
            with suppress(*BROKER_ERRORS):
                app.control.revoke(list(sent))


def _send(waiting: deque[tuple[int, Signature]], sent: dict[str, int], expires_s: float) -> None:
    if not waiting or len(sent) >= WINDOW:
        return
    with app.producer_or_acquire() as producer, denied_join_result():
        while waiting and len(sent) < WINDOW:
            position, signature = waiting[0]
            # A message that no worker took in time expires; it must not run after its sender has given up.
            result = signature.apply_async(producer=producer, expires=max(expires_s, 1.0))
            waiting.popleft()  # only after the call: if it fails, the task is sent again, which is harmless
            sent[result.id] = position


def _outcome(work: str, meta: Row) -> Row | LockgateError:
    """Return the row of a finished task, without the session token, or its error with the worker's type."""
    result = meta["result"]
    if isinstance(result, LockgateError):
        return result
    if isinstance(result, BaseException):
        return OutcomeUnknownError(
            f"{work}: a worker's task raised {type(result).__name__}: {result}; its effect is not known; "
            "nothing was deleted; look at the worker's log, then run it again"
        )
    extract(result)
    return {name: value for name, value in result.items() if name != HEADER}


@dataclass
class _Patience:
    """Ends the wait for missing workers or a missing broker."""

    work: str
    queue: str
    grace_s: float
    since: float
    refusal: Exception | None = None
    _broker_gone_since: float | None = None

    def renew(self) -> None:
        self.since = time.monotonic()
        self.refusal = None

    def wait_for_broker(self, error: Exception, *, sent: int) -> None:
        """Sleep before the next call to the broker, which may be restarting.

        Raises:
            OutcomeUnknownError: It has not answered for `grace_s`.
        """
        now = time.monotonic()
        if self._broker_gone_since is None:
            self._broker_gone_since = now
        if now - self._broker_gone_since >= self.grace_s:
            raise OutcomeUnknownError(
                f"{self.work}: {_no_answer(error)}; {sent} tasks were sent "
                "and may still succeed; nothing was deleted; check that the broker runs, then run it again"
            ) from None
        time.sleep(BROKER_POLL_S)

    def broker_answers(self) -> None:
        if self._broker_gone_since is not None:
            self._broker_gone_since = None
            self.renew()  # the workers lost it too, and may reconnect later than this process

    def check(self, sent: Collection[str]) -> Collection[str]:
        """Return the tasks that must be sent again, because the broker has lost their messages.

        Raises:
            NoWorkerError: No worker listens.
            MissingPartError: All workers are of another version.
        """
        if time.monotonic() - self.since < self.grace_s:
            return ()
        answers, held = _answers(), held_messages(app.asker(), self.queue)
        if not _listeners(answers, self.queue) and self._broker_gone_since is None:
            if not _is_busy(held, answers):
                raise NoWorkerError(
                    f"{self.work}: no worker listens on queue {self.queue!r}; the messages were withdrawn; "
                    f"start one with `celery -A lockgate.workers worker -Q {','.join(QUEUES)}`, then run it "
                    "again"
                )
            logger.info("%s: no worker answers; one is connected and at work, so it is waited for", self.work)
        if self.refusal is not None and not _are_running(sent):
            raise MissingPartError(
                f"{self.work}: no worker on queue {self.queue!r} knows these tasks; they were withdrawn; "
                f"upgrade the workers to the version of this process: {self.refusal}"
            )
        self.renew()
        if lost := _lost(sent, held):
            logger.warning("%s: the broker has lost %d messages; they are sent again", self.work, len(lost))
            _declare(self.queue)
        return lost


def _no_answer(error: Exception) -> str:
    """Return what a broker's error means: it is away, or it is there and refuses."""
    cause = error if isinstance(error, ResponseError) else error.__cause__
    if not isinstance(cause, ResponseError):
        return f"the broker {app.broker_address()} gives no answer ({type(error).__name__})"
    remedy = _REMEDIES.get(type(cause), "")
    return f"the broker {app.broker_address()} refuses: {cause}{remedy}"


_REMEDIES: Final[Mapping[type[Exception], str]] = {
    ReadOnlyError: " (READONLY: it is a replica; name its primary in LOCKGATE_BROKER_URL)",
    OutOfMemoryError: " (OOM: its memory is full; give it more, or remove what others keep there)",
}


def _are_running(sent: Collection[str]) -> bool:
    answers = app.control.inspect(timeout=PING_S).active() or {}
    return any(task["id"] in sent for tasks in answers.values() for task in tasks)


def _answers() -> Mapping[str, Any]:
    """Return the queues of each worker that answers; a pool `solo` does not while it runs a task."""
    return app.asker().control.inspect(timeout=PING_S).active_queues() or {}


def _listeners(answers: Mapping[str, Any], queue: str) -> list[str]:
    return [worker for worker, queues in answers.items() if any(q["name"] == queue for q in queues)]


def _is_busy(held: HeldMessages | None, answers: Mapping[str, Any]) -> bool:
    """Return whether a worker is connected that does not answer, and a message is taken."""
    return held is not None and held.taken > 0 and held.workers > len(answers)


def _lost(sent: Iterable[str], held: HeldMessages | None) -> list[str]:
    """Return the tasks that neither wait nor run; also one that ended meanwhile, which is harmless."""
    return [] if held is None else [task_id for task_id in sent if task_id not in held.ids]


def _declare(queue: str) -> None:
    """Declare a queue again: this process remembers that it did, and the broker may have lost that, too."""
    with app.producer_or_acquire() as producer:
        app.amqp.queues[queue](producer.channel).declare()
