"""What a process has seen of a journal, so that no read goes back in time.

One stamp an epoch is kept, not only the newest: a stamp of an older epoch may be one that no failover kept,
and whoever saw it must be told. It is forgotten when a reading has shown that it survived.
"""

from __future__ import annotations

import threading
from collections.abc import Collection

from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.stamp import Stamp


class Sight:
    """The newest stamp that was seen of each epoch; each only grows.

    Args:
        clock: Tells when the primary last answered.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._stamps: dict[int, int] = {}
        self._contact_s: float | None = None
        self.forked()

    def forked(self) -> None:
        """Keep in a child what was seen, and leave the lock, which a thread of the parent may hold."""
        self._changing = threading.Lock()

    @property
    def newest(self) -> Stamp:
        """The newest stamp, `0.0` before any."""
        return max(self.stamps, default=Stamp())

    @property
    def stamps(self) -> tuple[Stamp, ...]:
        """All that a read must hold, oldest first."""
        with self._changing:
            return tuple(Stamp(epoch, sequence) for epoch, sequence in sorted(self._stamps.items()))

    @property
    def without_contact_s(self) -> float | None:
        """For how long the primary has not answered, None if it never did."""
        return None if self._contact_s is None else abs(self._clock.now_s() - self._contact_s)

    def add(self, stamp: Stamp) -> None:
        """Take note of a stamp that others told of; an older one than is known already changes nothing."""
        with self._changing:
            self._add(stamp)

    def answered(self, stamp: Stamp) -> None:
        """Take note of a stamp that the primary told of, and that it is in contact."""
        self.add(stamp)
        self._contact_s = self._clock.now_s()

    def settle(self, held: Collection[Stamp], by: Stamp) -> None:
        """Let one stamp, that of a state which holds them, stand for several.

        A stamp that has grown meanwhile is kept: another thread has written.
        """
        with self._changing:
            for stamp in held:
                if self._stamps.get(stamp.epoch) == stamp.sequence:
                    del self._stamps[stamp.epoch]
            self._add(by)

    def _add(self, stamp: Stamp) -> None:
        if stamp.sequence > self._stamps.get(stamp.epoch, -1) and stamp != Stamp():
            self._stamps[stamp.epoch] = stamp.sequence
