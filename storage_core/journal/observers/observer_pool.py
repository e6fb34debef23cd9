"""Rotate reads over the observers. One that fails is skipped for a while, then tried again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.forks import FORKS, Forkable
from lockgate.storage_core.journal.observers.hot_standby import HotStandby

LOG: Final = logging.getLogger("lockgate.observers")

FIRST_PROBE_S: Final = 1.0
"""Pause after the first failure of an observer; each further failure doubles it."""

LAST_PROBE_S: Final = 60.0
"""Longest pause."""

LAG_S: Final = 0.05
"""An observer that is behind for longer is asked last for `FIRST_PROBE_S`, and then in its turn again."""


@dataclass
class _Down:
    """A failed observer's pause, and its last error."""

    pause_s: float
    until_s: float
    why: str


class ObserverPool(Forkable):
    """The observers of a journal, and which of them are down. A forked process keeps this knowledge."""

    def __init__(self, observers: Sequence[HotStandby], clock: Clock) -> None:
        self.observers = tuple(observers)
        self._clock = clock
        self._down: dict[str, _Down] = {}
        self._behind: dict[str, tuple[float, float]] = {}
        self._turn = 0
        self.after_fork_in_child()
        FORKS.register(self)

    def after_fork_in_child(self) -> None:
        """Replace the lock, which a thread of the parent may hold."""
        self._changing = threading.Lock()

    def next(self) -> list[HotStandby]:
        """Return the available observers, starting with a different one each time to share the load.

        Those that stay behind are last.
        """
        now_s = self._clock.monotonic_s()
        with self._changing:
            self._turn += 1
            turn = self._turn % max(1, len(self.observers))
            rotated = self.observers[turn:] + self.observers[:turn]
            available = [observer for observer in rotated if self._is_available(observer, now_s)]
            return sorted(available, key=lambda observer: self._stays_behind(observer, now_s))

    def mark_down(self, observer: HotStandby, error: LockgateError) -> None:
        """Skip an observer for a while after an error."""
        now_s = self._clock.monotonic_s()
        with self._changing:
            known = self._down.get(observer.name)
            pause_s = FIRST_PROBE_S if known is None else min(LAST_PROBE_S, 2 * known.pause_s)
            self._down[observer.name] = _Down(pause_s, now_s + pause_s, str(error))
        if known is None:
            LOG.warning("observer %s is down, reads go elsewhere: %s", observer.name, error)

    def mark_behind(self, observer: HotStandby) -> None:
        """Note that an observer lacked what a client has seen."""
        now_s = self._clock.monotonic_s()
        with self._changing:
            since_s, _ = self._behind.get(observer.name, (now_s, now_s))
            self._behind[observer.name] = since_s, now_s

    def mark_up(self, observer: HotStandby) -> None:
        """End the pause of an observer that has answered."""
        with self._changing:
            known = self._down.pop(observer.name, None)
            self._behind.pop(observer.name, None)
        if known is not None:
            LOG.warning("observer %s is up again", observer.name)

    def why_down(self, observer: HotStandby) -> str | None:
        """Return the error because of which an observer is skipped, None if it is not."""
        with self._changing:
            known = self._down.get(observer.name)
            return None if known is None else known.why

    def _is_available(self, observer: HotStandby, now_s: float) -> bool:
        down = self._down.get(observer.name)
        # A clock that was set back must not prolong the pause.
        return down is None or not down.until_s - down.pause_s <= now_s < down.until_s

    def _stays_behind(self, observer: HotStandby, now_s: float) -> bool:
        since_s, asked_s = self._behind.get(observer.name, (now_s, now_s))
        return asked_s - since_s >= LAG_S and now_s - asked_s < FIRST_PROBE_S
