"""Progress of a long step, as lines in the task's log."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

EVERY_S: Final = 5.0


class LoggedProgress:
    """Writes a line at a step's first and last report, and every few seconds between; thread-safe."""

    def __init__(self, log: Logger, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._now_s = now_s
        self._logged_s: dict[str, float] = {}
        self._lock = threading.Lock()

    def __call__(self, step: str, done: int, total: int) -> None:
        """Take a report of `done` out of `total`."""
        with self._lock:
            now_s = self._now_s()
            if done < total and now_s - self._logged_s.get(step, float("-inf")) < EVERY_S:
                return
            self._logged_s[step] = now_s
        self._log.info("%s: %d of %d", step, done, total)
