"""Hearing how far a long step is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Hears the step, how much of it is done, and how much there is in all; 0 is a total that nobody knows."""


def no_progress(step: str, done: int, total: int) -> None:
    """Report to nobody."""
