"""Split a stream of items into pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TypeVar

from lockgate.storage_core.stores.protocol import PAGE

Item = TypeVar("Item")


def in_pages(items: Iterator[Item], page_size: int) -> Iterator[Sequence[Item]]:
    """Yield pages of `page_size` items, clamped to 1 to 1,000."""
    size = max(1, min(page_size, PAGE))
    while page := list(islice(items, size)):
        yield page
