"""Tasks of a user that take and return much, in workers of Lockgate's application."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from celery import chord, group

from lockgate.workers.app import app

__all__ = ["app"]


@app.task(name="tests.grow")
def grow(value: str, times: int = 1) -> str:
    """Return it so many times."""
    return value * times


@app.task(name="tests.total")
def total(values: list[str], more: str = "") -> int:
    """Return the length of all."""
    return sum(map(len, values)) + len(more)


@app.task(name="tests.stubborn", bind=True)
def stubborn(self: Any, value: str) -> list[int]:
    """Tell length and try, at the third."""
    if self.request.retries < 2:
        raise self.retry(countdown=0)
    return [len(value), self.request.retries]


@app.task(name="tests.die")
def die(value: str, marker: str, whole: bool) -> int:
    """Be killed the first time, with the worker if that is asked for; return the length the second."""
    if not Path(marker).exists():
        Path(marker).touch()
        if whole:
            os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    return len(value)


def converse(patience_s: float) -> list[Any]:
    """Be a client: send much, and return how much comes back."""
    big = "x" * 5_000
    members = group(grow.s(big, times) for times in (1, 2, 3)).apply_async()
    joined = chord([grow.s(big), grow.s("a")], total.s(big)).apply_async()
    return [
        len(grow.delay(big, 10).get(timeout=patience_s)),
        stubborn.delay(big).get(timeout=patience_s),
        [len(value) for value in members.get(timeout=patience_s)],
        joined.get(timeout=patience_s),
    ]
