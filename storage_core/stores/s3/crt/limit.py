"""Limit: how many requests are under way at a time, fewer while S3 is throttling."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Slot:
    """The place of one request.

    Attributes:
        throttled: Whether S3 refused the request because there are too many.
    """

    throttled = False


class Limit:
    """A number of slots that is halved by a refusal, and grows by one after as many successes as it has.

    Args:
        most: Maximum number.
    """

    def __init__(self, most: int) -> None:
        self._most = float(most)
        self._slots = float(most)
        self._taken = 0
        self._changed = threading.Condition()

    @contextmanager
    def slot(self) -> Iterator[Slot]:
        """Wait for a slot, and hold it."""
        with self._changed:
            self._changed.wait_for(lambda: self._taken < max(1, int(self._slots)))
            self._taken += 1
        slot = Slot()
        try:
            yield slot
            change = self._slots / -2 if slot.throttled else 1 / self._slots
        except BaseException:
            change = 0.0
            raise
        finally:
            with self._changed:
                self._taken -= 1
                self._slots = min(self._most, max(1.0, self._slots + change))
                self._changed.notify_all()
