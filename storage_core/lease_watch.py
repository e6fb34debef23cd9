"""Watch leases for renewals on a monotonic clock, so that a wall clock that jumps ends no lease.

By the wall clock a lease is at most overdue. It has lapsed when one process has seen it unrenewed twice, at
least the lease's own limit apart on its monotonic clock.

Source: journal, "Leases".
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Final

from lockgate.storage_core.forks import FORKS, Forkable

MOST: Final = 100_000
"""Leases that a process remembers. Forgetting one only starts its time again."""


class LeaseWatch(Forkable):
    """Remembers since when this process has seen each lease without a renewal."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[Hashable, float]] = {}
        self.after_fork_in_child()
        FORKS.register(self)

    def after_fork_in_child(self) -> None:
        """Keep what was seen and replace the lock, which a thread of the parent may hold."""
        self._changing = threading.Lock()

    def unrenewed_s(
        self, lease: str, renewal: Hashable, monotonic_s: float, since_s: float | None = None
    ) -> float:
        """Return for how many seconds a lease was seen without a renewal; 0 at first sight.

        Args:
            lease: Name of the lease, unique in this process.
            renewal: A value that each taking and each renewal of the lease changes.
            monotonic_s: Time of the monotonic clock (`Clock.monotonic_s`).
            since_s: When another process of this machine saw the same renewal; only counts at first sight.
        """
        with self._changing:
            seen, first_s = self._seen.get(lease, (None, monotonic_s))
            if seen == renewal and first_s <= monotonic_s:
                return monotonic_s - first_s
            first_s = monotonic_s if since_s is None else min(since_s, monotonic_s)
            self._seen.pop(lease, None)
            self._seen[lease] = (renewal, first_s)
            if len(self._seen) > MOST:
                del self._seen[next(iter(self._seen))]
            return monotonic_s - first_s


LEASE_WATCH: Final = LeaseWatch()
"""The watch of this process."""
