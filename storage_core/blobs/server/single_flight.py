"""Share one call among concurrent callers with the same key; results are not kept afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from copy import copy
from typing import Generic, TypeVar

from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.forks import FORKS, Forkable

T = TypeVar("T")


class SingleFlight(Forkable, Generic[T]):
    """Calls under way, by key. Safe to use from several threads."""

    def __init__(self) -> None:
        self.after_fork_in_child()
        FORKS.register(self)

    def after_fork_in_child(self) -> None:
        """Forget the parent's calls: the child has no threads for them."""
        self._changing = threading.Lock()
        self._flights: dict[Hashable, Future[T]] = {}

    def do(self, key: Hashable, work: Callable[[], T]) -> T:
        """Do some work, or wait for the thread that is doing it; return its result or raise its error.

        Args:
            key: Key of the work.
            work: Work to do.

        Raises:
            LockgateError: The work raised it.
        """
        own: Future[T] = Future()
        flights = self._flights
        while True:
            with self._changing:
                flight = flights.setdefault(key, own)
            if flight is own:
                break
            with suppress(CancelledError):  # its thread was interrupted: try again
                return _result_of(flight)
        try:
            result = work()
        except LockgateError as error:
            own.set_exception(error)
            raise
        except BaseException:
            own.cancel()
            raise
        else:
            own.set_result(result)
            return result
        finally:
            del flights[key], flight, own  # the error's traceback has this frame: break the reference cycle


def _result_of(flight: Future[T]) -> T:
    """Wait for another thread's call; each waiter raises a copy of its error, because raising changes it."""
    error = flight.exception()
    if error is not None:
        raise copy(error) from error
    return flight.result()
