"""Count requests in a row: hold those that come together, and answer them as one round.

A store that is far away answers all requests that were sent together after about the same time, so n rounds
take n times the store's latency, however many requests a round has.
"""

from __future__ import annotations

import concurrent.futures.thread
import gc
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from lockgate.storage_core import concurrency

_WAITING: Final = {__file__, threading.__file__, concurrent.futures.thread.__file__, concurrency.__file__}
"""Modules in which a thread waits for another one, or for work."""


@dataclass
class Rounds:
    """Holds each request until all threads wait and none has come for a while, and then lets all of them go.

    On a busy machine a request may come late and be counted as a round of its own: a count is an upper limit.

    Attributes:
        quiet_s: Time without a further request after which a round is complete.
        rounds: What was requested in each round so far, in order of arrival.
    """

    quiet_s: float = 0.03
    rounds: list[Sequence[str]] = field(default_factory=list)
    _held: list[str] = field(default_factory=list)
    _newest_s: float = 0.0
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def __len__(self) -> int:
        return len(self.rounds)

    def hold(self, request: str) -> None:
        """Wait for the end of the round that a request belongs to."""
        with self._changed:
            number = len(self.rounds)
            self._held.append(request)
            self._newest_s = time.monotonic()
            while number == len(self.rounds):
                if _is_busy():
                    self._newest_s = time.monotonic()
                left_s = self._newest_s + self.quiet_s - time.monotonic()
                if left_s > 0:
                    self._changed.wait(left_s)
                else:
                    self.rounds.append(self._held)
                    self._held = []
                    self._changed.notify_all()


def _is_busy() -> bool:
    """Return whether another thread of the commit computes: it may be about to send a request.

    Threads that tests before this one have left are none of it.
    """
    # Before 3.11.9 a collection in this call waits for ever for a thread that is being started (gh-106883).
    collects = gc.isenabled()
    gc.disable()
    try:
        frames = sys._current_frames()
    finally:
        if collects:
            gc.enable()
    others = {
        thread.ident
        for thread in threading.enumerate()
        if thread is threading.main_thread() or thread.name.startswith("lockgate_")
    } - {threading.get_ident()}
    return any(
        frames[thread].f_code.co_filename not in _WAITING
        for thread in others
        if thread is not None and thread in frames
    )
