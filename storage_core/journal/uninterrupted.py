"""Calls that an exception of a signal handler does not cut in two.

Python runs signal handlers in the main thread, between any two steps: that of Ctrl-C, those of the time
limits of Airflow and Celery. An exception there could leave a transaction open, or bytes sent and not
counted. The main thread therefore waits while another thread makes such a call. The exception ends the wait
at once; the call is made to its end before the next one begins, and before Python ends.

To wake a thread costs as much as a third of a sync to a fast disk. During a call that only waits for such a
disk the handlers are held back instead, and run after it.
"""

from __future__ import annotations

import signal
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from contextvars import Context, copy_context
from functools import partial
from threading import current_thread, main_thread
from types import FrameType
from typing import Any, Final, TypeVar

from lockgate.storage_core.forks import FORKS, Forkable

T = TypeVar("T")

_HELD: Final = tuple(
    getattr(signal, name)
    for name in (
        "SIGINT",
        "SIGTERM",
        "SIGALRM",
        "SIGUSR1",
        "SIGUSR2",
        "SIGHUP",
        "SIGQUIT",
        "SIGVTALRM",
        "SIGPROF",
    )
    if hasattr(signal, name)
)
"""Signals whose handlers may raise."""


class Uninterrupted(Forkable):
    """The thread that makes the main thread's calls. Other threads make theirs themselves."""

    def __init__(self) -> None:
        self.after_fork_in_child()
        FORKS.register(self)

    def after_fork_in_child(self) -> None:
        """Begin with no thread: those of the parent do not exist here."""
        self._newest: weakref.ref[Future[Any]] | None = None  # weak: its result is the caller's
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="lockgate-uninterrupted")

    @property
    def is_idle(self) -> bool:
        """Whether no call is under way, such as one whose wait was interrupted."""
        newest = None if self._newest is None else self._newest()
        return newest is None or newest.done()

    def run(self, call: Callable[[], T], *, unwanted: Callable[[T], object] | None = None) -> T:
        """Make a call and return its result; it sees the caller's context.

        Args:
            call: The call.
            unwanted: Given the result if the wait for it was interrupted, so that it can be closed.
        """
        if current_thread() is not main_thread():
            return call()
        result = Future[T]()
        self._newest = weakref.ref(result)
        try:
            self._threads.submit(_make, [(call, copy_context(), result)])
        except RuntimeError:  # Python is ending: its executors take no more calls
            return call()
        except BaseException:
            _give_up(result, unwanted)
            raise
        try:
            return result.result()
        except BaseException:
            _give_up(result, unwanted)
            raise
        finally:
            del result  # an error has this frame in its traceback: a reference cycle

    def run_brief(self, call: Callable[[], T]) -> T:
        """Make a call that only waits for a disk, and return its result; signal handlers run after it."""
        if current_thread() is not main_thread():
            return call()
        if not self.is_idle:
            return self.run(call)  # it comes after the one that is under way
        came: list[tuple[int, FrameType | None]] = []
        handlers: dict[int, Callable[[int, FrameType | None], object]] = {}
        try:
            for number in _HELD:
                handler = signal.getsignal(number)
                if callable(handler):
                    handlers[number] = handler
                    signal.signal(number, lambda number, frame: came.append((number, frame)))
            return call()
        finally:
            _restore(dict(handlers))
            with ExitStack() as each:  # all of them also if one raises
                for number, frame in reversed(came):
                    each.callback(handlers[number], number, frame)


def _restore(handlers: dict[int, Callable[[int, FrameType | None], object]]) -> None:
    """Set the handlers again, all of them also if one that is set again runs at once and raises."""
    raised: BaseException | None = None
    while handlers:
        number = next(iter(handlers))
        try:
            signal.signal(number, handlers[number])
            del handlers[number]
        except BaseException as error:  # noqa: BLE001 - raised below
            raised = error
    if raised is not None:
        raise raised


def _make(made: list[tuple[Callable[[], T], Context, Future[T]]]) -> None:
    call, context, result = made.pop()  # an error's traceback leads to this list: a reference cycle
    try:
        result.set_result(context.run(call))
    except BaseException as error:  # noqa: BLE001 - raised by the caller
        result.set_exception(error)
    finally:
        del call, context, result


def _give_up(result: Future[T], unwanted: Callable[[T], object] | None) -> None:
    if unwanted is not None:
        result.add_done_callback(partial(_pass_on, unwanted))


def _pass_on(unwanted: Callable[[T], object], result: Future[T]) -> None:
    if result.exception() is None:
        unwanted(result.result())


UNINTERRUPTED: Final = Uninterrupted()
"""The thread of this process."""
