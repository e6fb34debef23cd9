"""Injected time: tests control the clock, so that none of them sleeps to win a race."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """A source of the current time, and of delays."""

    def now_s(self) -> float:
        """Return seconds since the epoch."""

    def monotonic_s(self) -> float:
        """Return seconds since any fixed moment; unlike `now_s` it never jumps. For durations."""

    def sleep(self, seconds: float) -> None:
        """Block for this many seconds."""

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Block until the event is set, at most this many seconds; return whether it is set."""


class SystemClock:
    """The machine's clock; see `Clock`."""

    def now_s(self) -> float:
        """Return seconds since the epoch."""
        return time.time()

    def monotonic_s(self) -> float:
        """Return seconds since any fixed moment; unlike `now_s` it never jumps. For durations."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Block for this many seconds."""
        time.sleep(seconds)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Block until the event is set, at most this many seconds; return whether it is set."""
        return event.wait(seconds)
