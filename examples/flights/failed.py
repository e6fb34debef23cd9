"""The error of a demo that did not go as it promises."""

from __future__ import annotations


class DemoFailedError(Exception):
    """A step did not do what it should; the message says which, and where to look."""
