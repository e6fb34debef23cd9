"""Sends many Celery tasks in bounded windows and yields what comes back.

Not a chord, whose cost grows worse than linearly with its size, and not a subscription a task: results are
read in bulk, one call for a whole window.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from celery import states
from celery.canvas import Signature
from celery.result import denied_join_result
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from lockgate.storage_core.errors import LockgateError, MissingPartError, OutcomeUnknownError
from lockgate.workers.app import QUEUES, app
from lockgate.workers.session.token import HEADER, take_up

logger = logging.getLogger(__name__)

BROKER_ERRORS: Final = (OperationalError, RedisError)
WINDOW: Final = 256
"""Messages that are out at a time: enough for many workers, few enough to withdraw."""
POLL_S: Final = 0.1
PING_S: Final = 2.0
BROKER_POLL_S: Final = 0.5

Row = dict[str, Any]
"""What a Lockgate task returns."""


def gather(
    signatures: Sequence[Signature], *, work: str, queue: str, timeout_s: float, grace_s: float
) -> Generator[tuple[int, Row | LockgateError]]:
    """Run tasks on the workers and yield each one's position and result, or its error, as they end.

    A task that a worker's shutdown cut off has not failed: it is sent again, as often as that happens.
    Closing the generator early withdraws what no worker has begun. What one has begun goes on by itself:
    every task's effect is idempotent.

    Args:
        signatures: One a task.
        work: What is being done, for messages: `commit of job sales-g1`.
        queue: Where the tasks go.
        timeout_s: For all of them together.
        grace_s: With neither a result nor a worker on the queue for this long, there is none; a broker that
            gives no answer is asked again for as long, and its workers then have as long to come back to it.

    Raises:
        MissingPartError: No worker listens on the queue.
        OutcomeUnknownError: The time is over, or the broker is gone; what the workers have begun may still
            end well.
    """
    todo = deque(enumerate(signatures))
    out: dict[str, int] = {}
    deadline = time.monotonic() + timeout_s
    patience = _Patience(work, queue, grace_s, since=time.monotonic())
    try:
        while todo or out:
            try:
                _send(todo, out, expires_s=deadline - time.monotonic())
                for task_id, meta in app.backend.get_many(set(out), interval=POLL_S, max_iterations=1):
                    patience.renew()
                    position = out.pop(task_id)
                    if meta.get("status") == states.REVOKED:
                        # Its worker was taken away amid it, which says nothing of the task.
                        logger.warning("%s: task %d was preempted: it is sent again", work, position + 1)
                        todo.append((position, signatures[position]))
                    else:
                        yield position, _outcome(work, meta)
                patience.check()
            except BROKER_ERRORS as error:
                patience.wait_for_broker(error, out=len(out))
            else:
                patience.broker_answers()
            if (todo or out) and time.monotonic() > deadline:
                raise OutcomeUnknownError(
                    f"{work}: {len(out) + len(todo)} of {len(signatures)} tasks gave no answer in "
                    f"{timeout_s:.0f} s; those not begun were withdrawn, the others may still end well; "
                    "look at the workers' logs, then run it again: what is done is not done twice"
                )
    finally:
        if out:
            with suppress(*BROKER_ERRORS):
                app.control.revoke(list(out))


def _send(todo: deque[tuple[int, Signature]], out: dict[str, int], expires_s: float) -> None:
    if not todo or len(out) >= WINDOW:
        return
    with app.producer_or_acquire() as producer, denied_join_result():
        while todo and len(out) < WINDOW:
            position, signature = todo[0]
            # A message that nobody took in time is dropped, not run after its sender has given up.
            sent = signature.apply_async(producer=producer, expires=max(expires_s, 1.0))
            todo.popleft()  # only now: one that the broker may not have is sent again, which does no harm
            out[sent.id] = position


def _outcome(work: str, meta: Row) -> Row | LockgateError:
    """Return what a finished task returned, or its error with the type that it had in the worker.

    What the worker has seen of the journal is taken up, and is no part of the row.
    """
    result = meta["result"]
    if isinstance(result, LockgateError):
        return result
    if isinstance(result, BaseException):
        return OutcomeUnknownError(
            f"{work}: a worker's task ended in {type(result).__name__}: {result}; what it had begun is not "
            "known; nothing was deleted; look at the worker's log, then run it again"
        )
    take_up(result)
    return {name: value for name, value in result.items() if name != HEADER}


@dataclass
class _Patience:
    """Ends a wait for workers, or for a broker, that are not there."""

    work: str
    queue: str
    grace_s: float
    since: float
    _broker_gone_since: float | None = None

    def renew(self) -> None:
        self.since = time.monotonic()

    def wait_for_broker(self, error: Exception, *, out: int) -> None:
        """Sleep a little before the broker is asked again: it may be starting anew.

        Raises:
            OutcomeUnknownError: It has given no answer for the whole grace.
        """
        now = time.monotonic()
        if self._broker_gone_since is None:
            self._broker_gone_since = now
        if now - self._broker_gone_since >= self.grace_s:
            raise OutcomeUnknownError(
                f"{self.work}: the broker gives no answer ({type(error).__name__}); {out} tasks were out and "
                "may still end well; nothing was deleted; see that it runs, then run it again"
            ) from None
        time.sleep(BROKER_POLL_S)

    def broker_answers(self) -> None:
        if self._broker_gone_since is not None:
            self._broker_gone_since = None
            self.renew()  # the workers lost it too, and some come back to it later than this process

    def check(self) -> None:
        if time.monotonic() - self.since < self.grace_s:
            return
        if not _listeners(self.queue) and self._broker_gone_since is None:
            raise MissingPartError(
                f"{self.work}: no worker listens on queue {self.queue!r}; the messages were withdrawn; "
                f"start one with `celery -A workers worker -Q {','.join(QUEUES)}`"
            )
        self.renew()


def _listeners(queue: str) -> list[str]:
    answers = app.control.inspect(timeout=PING_S).active_queues() or {}
    return [worker for worker, queues in answers.items() if any(q["name"] == queue for q in queues)]
