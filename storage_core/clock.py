"""Time, injected: tests own the clock, so that none of them sleeps to win a race."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Tells the time and waits."""

    def now_s(self) -> float:
        """Seconds since the epoch."""

    def sleep(self, seconds: float) -> None:
        """Wait that many seconds."""

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait that many seconds, or until the event is set; returns whether it is."""


class SystemClock:
    """The machine's clock."""

    def now_s(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Wait that many seconds."""
        time.sleep(seconds)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait that many seconds, or until the event is set; returns whether it is."""
        return event.wait(seconds)
