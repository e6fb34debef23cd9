"""Log progress and result tables of a step."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

EVERY_S: Final = 5.0


class LoggedProgress:
    """Logs a step's first and last report, and one every few seconds between; thread-safe."""

    def __init__(self, log: Logger) -> None:
        self._log = log
        self._logged_s: dict[str, float] = {}
        self._lock = threading.Lock()

    def __call__(self, step: str, done: int, total: int) -> None:
        """Report `done` of `total`."""
        with self._lock:
            now_s = time.monotonic()
            if done < total and now_s - self._logged_s.get(step, float("-inf")) < EVERY_S:
                return
            self._logged_s[step] = now_s
        self._log.info("%s: %d of %d", step, done, total)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return a table as text: one line for each row, with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
