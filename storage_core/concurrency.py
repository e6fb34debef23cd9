"""Call a function for many items with bounded concurrency, and report progress."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from typing import Protocol, TypeVar

T = TypeVar("T")
U = TypeVar("U")


class Progress(Protocol):
    """A callback for the progress of a step."""

    def __call__(self, step: str, done: int, total: int, /) -> None:
        """Report that `done` of `total` items of a step are done; an unknown total is 0."""


def no_progress(step: str, done: int, total: int) -> None:
    """Discard the report."""


def in_parallel(call: Callable[[T], U], items: Iterable[T], limit: int) -> Iterator[U]:
    """Yield `call(item)` for all items in order of completion, with at most `limit` calls at a time.

    After the first error no new item is read; the error is raised when the running calls have ended, so no
    thread is left behind. Calls see the caller's context (the failpoints' step).

    Args:
        call: Thread-safe function.
        items: Any number of items, read as calls complete.
        limit: Maximum number of concurrent calls, at least 1.
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
    """Yield `call(item)` for all items in their order; see `in_parallel`.

    At most `limit` calls are running or have a result that was not yielded yet.
    """
    with ThreadPoolExecutor(max_workers=limit, thread_name_prefix="lockgate") as pool:
        running: deque[Future[U]] = deque()
        for item in items:
            running.append(pool.submit(copy_context().run, call, item))
            if len(running) >= limit:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
