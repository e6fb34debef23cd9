"""The parts of a page, which are read at the same time: one that cannot be read does not hide the others."""

from __future__ import annotations

from asyncio import gather
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from lockgate.plugins.web.answers import Page
from lockgate.plugins.web.problems import logged_problem
from lockgate.storage_core.errors import ObjectNotFoundError

T = TypeVar("T")
Read = Callable[[], T]


class Parts:
    """Reads the parts of one page, each in a thread.

    Attributes:
        unknown: What could not be read, and why, one sentence each.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self.unknown: list[str] = []

    async def whole(self, read: Read[T]) -> T:
        """Return the part without which there is no page; its error is the page's."""
        found = await run_in_threadpool(read)
        self._note(getattr(found, "unknown", ()))
        return found

    async def part(self, read: Read[T], *, may_be_absent: bool = False) -> T | None:
        """Return a part; None if it cannot be read, or if there is none and that is no loss."""
        try:
            return await self.whole(read)
        except Exception as error:  # noqa: BLE001 - the rest of the page is shown
            if not (may_be_absent and isinstance(error, ObjectNotFoundError)):
                self._note([logged_problem(self._request, error).detail])
        return None

    async def page(self, read: Read[Page[T]]) -> Page[T]:
        """Return a page of a list; an empty one if it cannot be read."""
        return await self.part(read) or Page(items=())

    async def all(self, *reads: Read[T]) -> tuple[T, ...]:
        """Return those of the parts that can be read."""
        return tuple(found for found in await gather(*map(self.part, reads)) if found is not None)

    def _note(self, texts: Iterable[Any]) -> None:
        self.unknown.extend(text for text in texts if text not in self.unknown)
