"""Tasks of a user in workers of Lockgate's application, with large arguments and results."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from celery import chord, group

from lockgate.workers.celery_app import app

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
    """Fail twice; at the third attempt return the length and the attempt."""
    if self.request.retries < 2:
        raise self.retry(countdown=0)
    return [len(value), self.request.retries]


@app.task(name="tests.die")
def die(value: str, marker: str, whole: bool) -> int:
    """Be killed at the first delivery, optionally with the worker; return the length at the second."""
    if not Path(marker).exists():
        Path(marker).touch()
        if whole:
            os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    return len(value)


def converse(patience_s: float) -> list[Any]:
    """Send a large message like a client, and return the size of the result."""
    big = "x" * 5_000
    members = group(grow.s(big, times) for times in (1, 2, 3)).apply_async()
    joined = chord([grow.s(big), grow.s("a")], total.s(big)).apply_async()
    return [
        len(grow.delay(big, 10).get(timeout=patience_s)),
        stubborn.delay(big).get(timeout=patience_s),
        [len(value) for value in members.get(timeout=patience_s)],
        joined.get(timeout=patience_s),
    ]
