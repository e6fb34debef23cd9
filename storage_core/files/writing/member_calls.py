"""Calls to all members of a block at once: one in the writer's thread, each other one in a thread beside it.

No executor of the standard library: it takes a lock by calls of Python, and a signal handler that raises
between two of them leaves it taken, so that the next call waits for ever. It is also twice as slow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final, NamedTuple, TypeVar

from lockgate.storage_core.concurrency import raise_error, same, start

T = TypeVar("T")

THREAD: Final = "lockgate-pipeline"
"""Name of the threads."""


class _Wanted(NamedTuple):
    """A call for a thread.

    Attributes:
        number: Its number among those of its turn.
        call: The call.
        context: Context of the caller.
        outcomes: Takes its number, and a function that returns its result or raises its error.
    """

    number: int
    call: Callable[[], Any]
    context: Context
    outcomes: SimpleQueue[tuple[int, Callable[[], Any]]]


class MemberCalls:
    """The threads of one writer, started when they are needed."""

    def __init__(self) -> None:
        self._wanted: SimpleQueue[_Wanted | None] = SimpleQueue()
        self._threads: list[Thread] = []

    def all(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Make all calls at once; return their results in order.

        After an interrupt those in other threads go on, and their outcomes are dropped.
        """
        first, *others = calls
        if len(self._threads) < len(others):
            self._start(len(others))
        if not others or not self._threads:
            return [call() for call in calls]
        outcomes: SimpleQueue[tuple[int, Callable[[], T]]] = SimpleQueue()
        for number, call in enumerate(others):
            self._wanted.put(_Wanted(number, call, copy_context(), outcomes))
        result = first()
        ended = dict(outcomes.get() for _ in others)
        return [result, *(ended[number]() for number in range(len(others)))]

    def end(self) -> None:
        """End the threads, after the calls under way."""
        self._wanted.put(None)
        threads, self._threads = self._threads, []
        for thread in threads:
            thread.join()

    def __del__(self) -> None:
        """End the threads of a writer that was not closed."""
        self._wanted.put(None)

    def _start(self, count: int) -> None:
        """Start threads until there are so many; fewer if Python is ending."""
        with suppress(RuntimeError):
            while len(self._threads) < count:
                thread = Thread(target=_work, args=(self._wanted,), name=THREAD, daemon=True)
                start(thread)
                self._threads.append(thread)


def _work(wanted: SimpleQueue[_Wanted | None]) -> None:
    while _make(wanted.get()):
        pass
    wanted.put(None)  # for the next thread, also for one that is not listed because its start was interrupted


def _make(wanted: _Wanted | None) -> bool:
    """Make a call; its arguments are no longer kept when this returns."""
    if wanted is None:
        return False
    try:
        outcome = partial(same, wanted.context.run(wanted.call))
    except BaseException as error:  # noqa: BLE001 - raised by the caller
        outcome = partial(raise_error, error)
    wanted.outcomes.put((wanted.number, outcome))
    return True
