"""The same thing asked for by many at once is done once, and its outcome is everybody's.

What is kept is what is under way: nothing of a flight stays when it has landed.
"""

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
    """Work under way, by key. Safe to use from several threads."""

    def __init__(self) -> None:
        self.after_fork_in_child()
        FORKS.register(self)

    def after_fork_in_child(self) -> None:
        """Begin with none: the threads that did the parent's are not here."""
        self._changing = threading.Lock()
        self._flights: dict[Hashable, Future[T]] = {}

    def do(self, key: Hashable, work: Callable[[], T]) -> T:
        """Do some work, or wait for whoever does it already; returns, or raises, what came of it.

        Args:
            key: Of the work.
            work: Finds what an earlier flight has left.

        Raises:
            LockgateError: As the work did.
        """
        own: Future[T] = Future()
        flights = self._flights
        while True:
            with self._changing:
                flight = flights.setdefault(key, own)
            if flight is own:
                break
            with suppress(CancelledError):  # whoever did it was stopped: that says nothing of the work
                return _landed(flight)
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
            del flights[key], flight, own  # an error knows this frame: it would keep itself


def _landed(flight: Future[T]) -> T:
    """Wait for another's flight; of its error each has a copy, for whoever raises one writes to it."""
    error = flight.exception()
    if error is not None:
        raise copy(error) from error
    return flight.result()
