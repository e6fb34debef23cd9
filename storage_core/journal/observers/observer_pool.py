"""Whose turn it is: observers in rotation; those that are down rest, and are asked again after a while."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.forks import FORKS, Forkable
from lockgate.storage_core.journal.observers.observer import Observer

LOG: Final = logging.getLogger("lockgate.observers")

FIRST_PROBE_S: Final = 1.0
"""An observer that could not be asked is asked again after so long, then after twice as long, …"""

LAST_PROBE_S: Final = 60.0
"""… but never later than this."""


@dataclass
class _Down:
    """An observer that could not be asked, and until when nobody asks it again."""

    pause_s: float
    until_s: float
    why: str


class Rota(Forkable):
    """Which observers to ask, and in which order. A fork goes on with what its parent knew of them.

    Args:
        observers: Of one journal.
        clock: Tells when one that is down is asked again.
    """

    def __init__(self, observers: Sequence[Observer], clock: Clock) -> None:
        self.observers = tuple(observers)
        self._clock = clock
        self._down: dict[str, _Down] = {}
        self._turn = 0
        self.after_fork_in_child()
        FORKS.register(self)

    def after_fork_in_child(self) -> None:
        """Leave the lock, which a thread of the parent may hold."""
        self._changing = threading.Lock()

    def next(self) -> list[Observer]:
        """Return those to ask, each time beginning with another, so that all share the reads."""
        now_s = self._clock.now_s()
        with self._changing:
            self._turn += 1
            turn = self._turn % max(1, len(self.observers))
            turned = self.observers[turn:] + self.observers[:turn]
            return [observer for observer in turned if self._may_ask(observer, now_s)]

    def mark_down(self, observer: Observer, error: LockgateError) -> None:
        """Let an observer rest that could not be asked."""
        now_s = self._clock.now_s()
        with self._changing:
            known = self._down.get(observer.name)
            pause_s = FIRST_PROBE_S if known is None else min(LAST_PROBE_S, 2 * known.pause_s)
            self._down[observer.name] = _Down(pause_s, now_s + pause_s, str(error))
        if known is None:
            LOG.warning("observer %s is down, reads go elsewhere: %s", observer.name, error)

    def mark_up(self, observer: Observer) -> None:
        """Count on an observer again that has answered."""
        with self._changing:
            known = self._down.pop(observer.name, None)
        if known is not None:
            LOG.warning("observer %s is up again", observer.name)

    def why_down(self, observer: Observer) -> str | None:
        """Return why an observer is not asked, None if it is."""
        with self._changing:
            known = self._down.get(observer.name)
            return None if known is None else known.why

    def _may_ask(self, observer: Observer, now_s: float) -> bool:
        down = self._down.get(observer.name)
        # A clock that was set back must not keep an observer out for long.
        return down is None or not down.until_s - down.pause_s <= now_s < down.until_s
