"""Byte ranges of requests."""

from __future__ import annotations

import re
from typing import Final

_RANGE: Final = re.compile(r"bytes=(?P<first>[0-9]{0,18})-(?P<last>[0-9]{0,18})")


class UnsatisfiableRangeError(Exception):
    """The range begins after the last byte."""


def parse_range(header: str | None, size_bytes: int) -> range | None:
    """Return the bytes that a `Range` header names.

    Args:
        header: Value of the header, None if there is none.
        size_bytes: Size of the whole.

    Returns:
        None for the whole, also if the header names several ranges or cannot be parsed, as HTTP allows.

    Raises:
        UnsatisfiableRangeError: The range has no bytes.
    """
    match = None if header is None else _RANGE.fullmatch(header.strip())
    if match is None or not (match["first"] or match["last"]):
        return None
    if match["first"]:
        start, stop = int(match["first"]), size_bytes
        if match["last"]:
            if int(match["last"]) < start:
                return None
            stop = min(int(match["last"]) + 1, size_bytes)
    else:
        start, stop = max(0, size_bytes - int(match["last"])), size_bytes
    if start >= stop:
        raise UnsatisfiableRangeError
    return range(start, stop)
