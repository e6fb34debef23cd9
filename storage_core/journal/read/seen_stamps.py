"""The newest stamps that a process has seen of a journal, so that no read goes back in time.

One stamp is kept for each epoch, not only the newest: a failover may have lost the stamp of an older epoch,
and then reads must fail. It is dropped when a read has shown that it survived.
"""

from __future__ import annotations

import threading
from collections.abc import Collection

from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.stamp import Stamp


class SeenStamps:
    """The newest stamp seen in each epoch."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._stamps: dict[int, int] = {}
        self._contact_s: float | None = None
        self._from_primary = Stamp()
        self.after_fork_in_child()

    def after_fork_in_child(self) -> None:
        """Keep the stamps and replace the lock, which a thread of the parent may hold."""
        self._lock = threading.Lock()

    @property
    def newest(self) -> Stamp:
        """The newest stamp, `0.0` if none was seen."""
        return max(self.stamps, default=Stamp())

    @property
    def from_primary(self) -> Stamp:
        """The newest stamp that the primary has returned to this process; it never decreases."""
        return self._from_primary

    @property
    def stamps(self) -> tuple[Stamp, ...]:
        """The stamps that a read must include, oldest first."""
        with self._lock:
            return tuple(Stamp(epoch, sequence) for epoch, sequence in sorted(self._stamps.items()))

    @property
    def since_contact_s(self) -> float | None:
        """Seconds since the primary last answered, None if it never has."""
        return None if self._contact_s is None else self._clock.monotonic_s() - self._contact_s

    def add(self, stamp: Stamp) -> None:
        """Add a stamp, unless a newer one of its epoch is known."""
        with self._lock:
            self._add(stamp)

    def add_from_primary(self, stamp: Stamp) -> None:
        """Add a stamp that the primary returned, and record the contact."""
        with self._lock:
            self._add(stamp)
            self._from_primary = max(self._from_primary, stamp)
        self._contact_s = self._clock.monotonic_s()

    def replace(self, included: Collection[Stamp], by: Stamp) -> None:
        """Replace stamps by the stamp of a state that includes them.

        An epoch whose stamp has changed since is kept, because another thread has written.
        """
        with self._lock:
            for stamp in included:
                if self._stamps.get(stamp.epoch) == stamp.sequence:
                    del self._stamps[stamp.epoch]
            self._add(by)

    def _add(self, stamp: Stamp) -> None:
        if stamp.sequence > self._stamps.get(stamp.epoch, -1) and stamp != Stamp():
            self._stamps[stamp.epoch] = stamp.sequence
