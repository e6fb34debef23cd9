"""Split a stream of items into pages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

from lockgate.storage_core.stores.protocol import PAGE

Item = TypeVar("Item")


def in_pages(items: Iterable[Item], page_size: int) -> Iterator[tuple[Item, ...]]:
    """Yield pages of `page_size` items, clamped to 1 to 1,000."""
    rest, size = iter(items), max(1, min(page_size, PAGE))
    while page := tuple(islice(rest, size)):
        yield page
