"""Errors of calls that change a page of blobs in each transaction, when a page after the first is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from lockgate.storage_core.errors import LockgateError


class PartlyDone(msgspec.Struct):
    """What a call has done before it failed.

    Attributes:
        stands: What the pages before have changed, and what to do; empty before the first page.
    """

    stands: str = ""


@contextmanager
def saying_what_stands() -> Iterator[PartlyDone]:
    """Add to an error what the pages before have changed; it keeps its type.

    The text of a page's error knows only its own page, and says that nothing was changed. So only its first
    part, the reason, is kept.
    """
    done = PartlyDone()
    try:
        yield done
    except LockgateError as error:
        if not done.stands:
            raise
        raise type(error)(f"{reason_of(error)}; {done.stands}") from error


def reason_of(error: LockgateError) -> str:
    """Return the first part of an error's message, before its effect and the next step."""
    return str(error).partition("; ")[0]
