"""The same call for many items, some at a time, in order of their completion."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from typing import Protocol, TypeVar

T = TypeVar("T")
U = TypeVar("U")


class Progress(Protocol):
    """Hears how far a step is."""

    def __call__(self, step: str, done: int, total: int, /) -> None:
        """Report: `done` of `total` items of a step are done; 0 is a total that nobody knows."""


def no_progress(step: str, done: int, total: int) -> None:
    """Report to nobody."""


def in_parallel(call: Callable[[T], U], items: Iterable[T], limit: int) -> Iterator[U]:
    """Yield `call(item)` of all items, at most `limit` at a time; never holds more than that.

    The first error stops the taking of new items; it is raised when what was under way has ended, so no
    thread is left behind. Calls see the caller's context (the failpoints' step).

    Args:
        call: Safe to run in threads.
        items: Any length; read as room becomes free.
        limit: At least 1.
    """
    with ThreadPoolExecutor(max_workers=limit, thread_name_prefix="lockgate") as pool:
        running: set[Future[U]] = set()
        for item in items:
            running.add(pool.submit(copy_context().run, call, item))
            if len(running) >= limit:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)


def in_order(call: Callable[[T], U], items: Iterable[T], limit: int) -> Iterator[U]:
    """Yield `call(item)` of all items in their order, at most `limit` under way at a time.

    Results that nobody has taken yet count as under way: never more than `limit` are held.

    Args:
        call: Safe to run in threads.
        items: Any length; read as room becomes free.
        limit: At least 1.
    """
    with ThreadPoolExecutor(max_workers=limit, thread_name_prefix="lockgate") as pool:
        running: deque[Future[U]] = deque()
        for item in items:
            running.append(pool.submit(copy_context().run, call, item))
            if len(running) >= limit:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
