"""Limit: how many requests are under way at a time, fewer while S3 is throttling."""

from __future__ import annotations

import threading


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

    def take(self) -> Slot:
        """Wait for a slot, and hold it."""
        with self._changed:
            while self._taken >= max(1, int(self._slots)):
                self._changed.wait()
            self._taken += 1
        return Slot(self)

    def _free(self, slot: Slot, *, throttled: bool | None) -> None:
        with self._changed:
            if not slot.is_held:
                return
            slot.is_held = False
            self._taken -= 1
            if throttled is not None:
                change = self._slots / -2 if throttled else 1 / self._slots
                self._slots = min(self._most, max(1.0, self._slots + change))
            self._changed.notify_all()


class Slot:
    """The place of one request."""

    def __init__(self, limit: Limit) -> None:
        self.is_held = True
        self._limit = limit

    def free(self, *, throttled: bool | None) -> None:
        """Give the place to another request; the second time it has no effect.

        Args:
            throttled: Whether S3 refused the request because there are too many; None: there was no answer.
        """
        self._limit._free(self, throttled=throttled)  # noqa: SLF001 - the two are one
