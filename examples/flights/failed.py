"""The error of a failed demo."""

from __future__ import annotations


class DemoFailedError(Exception):
    """A check failed; the message has the details and the log to read."""
