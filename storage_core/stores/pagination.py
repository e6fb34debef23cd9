"""Cutting a stream of items into pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from lockgate.storage_core.stores.protocol import PAGE

Item = TypeVar("Item")


def in_pages(items: Iterator[Item], page_size: int) -> Iterator[Sequence[Item]]:
    """Gather items into pages of `page_size`, at least 1 and at most 1,000."""
    full = max(1, min(page_size, PAGE))
    page: list[Item] = []
    for item in items:
        page.append(item)
        if len(page) == full:
            yield page
            page = []
    if page:
        yield page
