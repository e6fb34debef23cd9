"""Call a function for many items with bounded concurrency, and report progress."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread, current_thread, main_thread
from types import TracebackType
from typing import Final, NoReturn, Protocol, Self, TypeVar

T = TypeVar("T")
U = TypeVar("U")

CALL_S: Final = 0.001
"""Processor time of a call to a store: calls that wait longer leave room for others."""


IDLE_S: Final = 1.0
"""Time after which a thread without work looks whether Python is ending."""


class Progress(Protocol):
    """A callback for the progress of a step."""

    def __call__(self, step: str, done: int, total: int, /) -> None:
        """Report that `done` of `total` items of a step are done; an unknown total is 0."""


def no_progress(step: str, done: int, total: int) -> None:
    """Discard the report."""


def in_parallel(
    call: Callable[[T], U], items: Iterable[T], limit: int, most: int = 0
) -> Generator[U, None, None]:
    """Yield `call(item)` for all items in order of completion, with at most `limit` calls at a time.

    After the first error no new item is read; the error is raised when the running calls have ended, so no
    thread is left behind. Calls see the caller's context (the failpoints' step).

    Args:
        call: Thread-safe function.
        items: Any number of items, read as calls complete.
        limit: Maximum number of concurrent calls, at least 1.
        most: If larger, up to so many calls of which even the fastest takes long, because each mostly waits
            for a store that is far away: one for each `CALL_S`.
    """
    fastest_s = 0.0
    reader = current_thread()
    # No executor: its futures, and a context for each call, cost a tenth of a short call to a store.
    wanted: SimpleQueue[tuple[T] | None] = SimpleQueue()
    ended: SimpleQueue[Callable[[], U]] = SimpleQueue()

    def work() -> None:
        nonlocal fastest_s
        while (item := _next(wanted, lambda: reader)) is not None:
            began_s = time.perf_counter()
            try:
                result = call(*item)
            except BaseException as error:  # noqa: BLE001 - raised by the caller
                ended.put(partial(raise_error, error))
                continue
            took_s = time.perf_counter() - began_s
            fastest_s = min(fastest_s or took_s, took_s)
            ended.put(partial(same, result))

    threads: list[Thread] = []
    running = 0
    try:
        for item in items:
            wanted.put((item,))
            running += 1
            if running > len(threads):
                name = f"lockgate_{len(threads)}"
                thread = Thread(target=copy_context().run, args=(work,), name=name)
                thread.start()
                threads.append(thread)
            while running >= max(limit, min(most, int(fastest_s / CALL_S))):
                running -= 1
                yield ended.get()()
                reader = current_thread()
        for _ in range(running):
            yield ended.get()()
            reader = current_thread()
    finally:
        wanted.put(None)
        for thread in threads:
            thread.join()


def overlapping(
    send: Callable[[T, Callable[[], None]], Callable[[], U]],
    items: Iterable[T],
    limit: int,
    most: int = 0,
    *,
    patience_s: float,
) -> Generator[U, None, None]:
    """Yield the results of calls that wait for their answers without a thread of their own.

    As `in_parallel`, but this thread sends all calls and reads all results. When the iteration is closed, it
    waits for the calls under way.

    Args:
        send: Begins the call for an item, and returns a function that waits for its result. It is given a
            function to call, from any thread, when the result is there.
        items: Any number of items, read as calls complete.
        limit: Maximum number of calls under way, at least 1.
        most: As in `in_parallel`.
        patience_s: Time after which a call is asked for its result although it is not there.
    """
    fastest_s = 0.0
    under_way: dict[int, tuple[float, Callable[[], U]]] = {}
    ended: SimpleQueue[tuple[int, float]] = SimpleQueue()

    def finished() -> U:
        nonlocal fastest_s
        while True:
            number, (began_s, _) = next(iter(under_way.items()))  # the oldest
            at_s = began_s + patience_s
            with suppress(Empty):
                number, at_s = ended.get(timeout=max(0.0, at_s - time.perf_counter()))
            if number in under_way:
                began_s, result = under_way.pop(number)
                fastest_s = min(fastest_s or at_s - began_s, at_s - began_s)
                return result()

    try:
        for number, item in enumerate(items):
            began_s = time.perf_counter()
            under_way[number] = began_s, send(item, partial(_note_end, ended, number))
            while len(under_way) >= max(limit, min(most, int(fastest_s / CALL_S))):
                yield finished()
        while under_way:
            yield finished()
    finally:
        # When Python ends, no other thread runs any more, and no answer comes.
        if not sys.is_finalizing():
            for _, result in under_way.values():
                with suppress(Exception):
                    result()


def _note_end(ended: SimpleQueue[tuple[int, float]], number: int) -> None:
    ended.put((number, time.perf_counter()))


def _next(wanted: SimpleQueue[tuple[T] | None], reader: Callable[[], Thread]) -> tuple[T] | None:
    """Return the next item; None once there are no more, or nobody can ask for more.

    A traceback may keep an iteration alive that nobody continues: Python would wait for its threads for ever.

    Args:
        wanted: Items; a None stays, for all threads.
        reader: Returns the thread that continued the iteration last.
    """
    while True:
        try:
            item = wanted.get(timeout=IDLE_S)
        except Empty:
            if not main_thread().is_alive() and (reader().daemon or not reader().is_alive()):
                return None
            continue
        if item is None:
            wanted.put(None)
        return item


def same(result: U) -> U:
    """Return a result: with `partial`, the counterpart of `raise_error`."""
    return result


def raise_error(error: BaseException) -> NoReturn:
    """Raise an error that was caught before, and keep no reference to it."""
    try:
        raise error
    finally:
        del error  # its traceback has this frame


def in_order(call: Callable[[T], U], items: Iterable[T], limit: int) -> Iterator[U]:
    """Yield `call(item)` for all items in their order; see `in_parallel`.

    At most `limit` calls are running or have a result that was not yielded yet; of 1, the caller makes each.
    """
    if limit == 1:
        yield from map(call, items)
        return
    with ThreadPoolExecutor(max_workers=limit, thread_name_prefix="lockgate") as pool:
        running: deque[Future[U]] = deque()
        for item in items:
            running.append(pool.submit(copy_context().run, call, item))
            if len(running) >= limit:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()


class Together:
    """Calls that run beside each other and beside those of the caller, within a block.

    When the block is left, no call is running any more; after an error, those that wait are left out.

        with Together(settings.near_calls) as together:
            decision = together.start(folder.decision)
            phase = together.start(other.phase)
            use(decision.result(), phase.result())
    """

    def __init__(self, limit: int) -> None:
        """Prepare.

        Args:
            limit: Maximum number of concurrent calls. With 1, each is made by the caller when it is started.
        """
        self._pool = ThreadPoolExecutor(limit, thread_name_prefix="lockgate") if limit > 1 else None

    def start(self, call: Callable[[], T]) -> Future[T]:
        """Start a call, and return its future result. It sees the caller's context.

        Only the thread of the block may start calls and wait for them.
        """
        if self._pool is not None:
            return self._pool.submit(copy_context().run, call)
        made: Future[T] = Future()
        try:
            made.set_result(call())
        except Exception as error:  # noqa: BLE001 - raised by the future's `result`, as those of a thread are
            made.set_exception(error)
        return made

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=error is not None)
