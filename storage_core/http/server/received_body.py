"""Body of a request, read in pieces with limits on its size and on idle time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final, TypeVar

import msgspec
from starlette.requests import Request
from starlette.types import Scope

from lockgate.storage_core.decoding import decode_json
from lockgate.storage_core.errors import InvalidInputError, StoreUnavailableError

PIECE_BYTES: Final = 1024 * 1024

LEAST_BYTES: Final = 16 * 1024
"""Bytes after which the idle time starts again: a client that sends single bytes counts as idle."""

UNCOUNTED_BYTES: Final = 64 * 1024
"""Bytes of a JSON body that do not count towards the budget: almost every body is smaller."""

JSON_TIMES: Final = 5
"""Idle times within which a JSON body must be complete, so that slow ones do not hold the budget."""

_LENGTH_DIGITS: Final = 18
_HELD: Final = "lockgate.json_bytes"
"""Name in a request's scope: bytes of the budget that it holds."""

T = TypeVar("T")


def content_length(request: Request) -> int | None:
    """Return the declared size of a request's body, None if it declares none.

    Raises:
        InvalidInputError: It is not a number, or one that no body has.
    """
    declared = request.headers.get("content-length")
    if declared is None:
        return None
    if not (declared.isascii() and declared.isdecimal()) or len(declared) > _LENGTH_DIGITS:
        raise InvalidInputError(
            f"Content-Length: {declared[:_LENGTH_DIGITS]} is not a number of at most {_LENGTH_DIGITS} "
            "digits, or only its beginning; nothing was done"
        )
    return int(declared)


class ClientGoneError(Exception):
    """The client disconnected before its request or response was complete."""


class BodyTooLargeError(InvalidInputError):
    """The body is larger than the limit."""


class IdleBodyError(StoreUnavailableError):
    """The client sent too little of the body for too long."""


class JsonBudget:
    """Memory for the JSON bodies of all requests of a process, until each has its response.

    Args:
        max_bytes: Maximum size of all bodies together, without `UNCOUNTED_BYTES` of each.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held_bytes = 0

    def take(self, scope: Scope, received: int) -> None:
        """Take memory for what a request has sent so far.

        Raises:
            StoreUnavailableError: Other requests hold the budget.
        """
        more = max(0, received - UNCOUNTED_BYTES) - scope.get(_HELD, 0)
        if self._held_bytes + more > self._max_bytes:
            raise StoreUnavailableError(
                f"the JSON bodies of this server's requests have reached {self._max_bytes} bytes; "
                "nothing was done; send it again"
            )
        scope[_HELD] = scope.get(_HELD, 0) + more
        self._held_bytes += more

    def release(self, scope: Scope) -> None:
        """Return what a request holds."""
        self._held_bytes -= scope.pop(_HELD, 0)


class Body:
    """Body of a request.

    Args:
        request: Request whose body is read only here.
        max_bytes: Maximum size.
        setting: Variable by which an operator raises it; empty: none.
        idle_s: Time to wait for the next `LEAST_BYTES`, or for the end.
        budget: Memory that its bytes need; None: its reader does not keep them.
    """

    def __init__(
        self,
        request: Request,
        *,
        max_bytes: int,
        setting: str = "",
        idle_s: float,
        budget: JsonBudget | None = None,
    ) -> None:
        self._budget = budget
        self._request = request
        self._max_bytes = max_bytes
        self._setting = setting
        self._idle_s = idle_s
        self._remaining_s = idle_s
        self._recent_bytes = 0

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the bytes in pieces of about `PIECE_BYTES`; the last may be shorter.

        Raises:
            BodyTooLargeError: The body is larger than the limit.
            IdleBodyError: The client was idle for too long.
            InvalidInputError: Its declared length is not a number.
            StoreUnavailableError: Other requests hold the budget.
            ClientGoneError: The client disconnected.
        """
        if (content_length(self._request) or 0) > self._max_bytes:
            raise self._too_large()
        received, yielded, more = 0, 0, True
        parts: list[bytes] = []
        while more:
            data, more = await self._receive()
            received += len(data)
            if received > self._max_bytes:
                raise self._too_large()
            if self._budget is not None:
                self._budget.take(self._request.scope, received)
            parts.append(data)
            if received - yielded >= PIECE_BYTES:
                yield b"".join(parts)
                parts.clear()
                yielded = received
        if received > yielded:
            yield b"".join(parts)

    async def json(self, kind: type[T]) -> T:
        """Return the content of a JSON body.

        Raises:
            InvalidInputError: It is not of this type.
            IdleBodyError: It was not complete in time.
        """
        limit_s = JSON_TIMES * self._idle_s
        try:
            async with asyncio.timeout(limit_s):
                text = b"".join([piece async for piece in self.pieces()])
        except TimeoutError:
            raise IdleBodyError(
                f"the request's JSON was not complete in {limit_s:g} s; nothing was done; send it again"
            ) from None
        try:
            return decode_json(text or b"{}", kind)
        except msgspec.MsgspecError as error:
            raise InvalidInputError(f"the request's JSON cannot be read: {error}; nothing was done") from None

    async def _receive(self) -> tuple[bytes, bool]:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            async with asyncio.timeout(self._remaining_s):
                message = await self._request.receive()
        except TimeoutError:
            raise IdleBodyError(
                f"less than {LEAST_BYTES} bytes of the request's body came in {self._idle_s:g} s; nothing "
                "was kept; send it again"
            ) from None
        if message["type"] != "http.request":
            raise ClientGoneError
        data = message.get("body", b"")
        self._count(len(data), loop.time() - began_s)
        return data, message.get("more_body", False)

    def _count(self, received: int, waited_s: float) -> None:
        """Count bytes, and the time waited for them; processing them does not count as idle."""
        self._remaining_s -= waited_s
        self._recent_bytes += received
        if self._recent_bytes >= LEAST_BYTES:
            self._remaining_s, self._recent_bytes = self._idle_s, 0

    def _too_large(self) -> BodyTooLargeError:
        return BodyTooLargeError(
            f"the request's body is larger than {self._max_bytes} bytes; nothing was kept"
            + (f"; the server's operator may raise {self._setting}" if self._setting else "")
        )
