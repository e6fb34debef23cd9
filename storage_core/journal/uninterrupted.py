"""Calls that an exception of a signal handler does not cut in two.

Python runs signal handlers in the main thread, between any two steps: that of Ctrl-C, those of the time
limits of Airflow and Celery. An exception there could leave a transaction open, or bytes sent and not
counted. The main thread therefore waits while another thread makes such a call. The exception ends the wait
at once; the call is made to its end before the next one begins, and before Python ends.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context, copy_context
from functools import partial
from threading import current_thread, main_thread
from typing import Final, TypeVar

from lockgate.storage_core.forks import FORKS, Forkable

T = TypeVar("T")


class Uninterrupted(Forkable):
    """The thread that makes the main thread's calls. Other threads make theirs themselves."""

    def __init__(self) -> None:
        self.after_fork_in_child()
        FORKS.register(self)

    def after_fork_in_child(self) -> None:
        """Begin with no thread: those of the parent do not exist here."""
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="lockgate-uninterrupted")

    def run(self, call: Callable[[], T], *, unwanted: Callable[[T], object] | None = None) -> T:
        """Make a call and return its result; it sees the caller's context.

        Args:
            call: The call.
            unwanted: Given the result if the wait for it was interrupted, so that it can be closed.
        """
        if current_thread() is not main_thread():
            return call()
        result: Future[T] = Future()
        try:
            self._threads.submit(_make, call, copy_context(), result)
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


def _make(call: Callable[[], T], context: Context, result: Future[T]) -> None:
    try:
        result.set_result(context.run(call))
    except BaseException as error:  # noqa: BLE001 - raised by the caller
        result.set_exception(error)


def _give_up(result: Future[T], unwanted: Callable[[T], object] | None) -> None:
    if unwanted is not None:
        result.add_done_callback(partial(_pass_on, unwanted))


def _pass_on(unwanted: Callable[[T], object], result: Future[T]) -> None:
    if result.exception() is None:
        unwanted(result.result())


UNINTERRUPTED: Final = Uninterrupted()
"""The thread of this process."""
