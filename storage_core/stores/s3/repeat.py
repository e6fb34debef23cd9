"""Repeat: make a call, and enter tenacity only if it fails, because that costs as much as a short call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tenacity import Retrying

T = TypeVar("T")


def repeated(attempts: Retrying, call: Callable[[], T]) -> T:
    """Make a call; if it fails, repeat it as `attempts` says, for which that was the first attempt."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - `attempts` decides
        failures = [error]

    def attempt() -> T:
        if failures:
            raise failures.pop()
        return call()

    return attempts(attempt)
