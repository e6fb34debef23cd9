"""Byte ranges, as a request asks for them."""

from __future__ import annotations

import re
from typing import Final

_RANGE: Final = re.compile(r"bytes=(?P<first>[0-9]{0,18})-(?P<last>[0-9]{0,18})")


class UnsatisfiableRangeError(Exception):
    """The range lies behind the end."""


def asked_range(header: str | None, size_bytes: int) -> range | None:
    """Return the bytes that a `Range` header asks for.

    Args:
        header: None if there is none.
        size_bytes: Of the whole.

    Returns:
        None for the whole: also where the header asks for several ranges or cannot be read, as HTTP allows.

    Raises:
        UnsatisfiableRangeError: There is no such byte.
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
