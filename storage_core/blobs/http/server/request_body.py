"""Body of a request, read in pieces with limits on its size and on idle time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final, TypeVar

import msgspec
from starlette.requests import Request

from lockgate.storage_core.blobs.sources import CHUNK
from lockgate.storage_core.errors import InvalidInputError, StoreUnavailableError

LEAST_BYTES: Final = 16 * 1024
"""Bytes after which the idle time starts again: a client that sends single bytes counts as idle."""

T = TypeVar("T")


class ClientGoneError(Exception):
    """The client disconnected before its request or response was complete."""


class BodyTooLargeError(InvalidInputError):
    """The body is larger than the limit."""


class IdleBodyError(StoreUnavailableError):
    """The client sent too little of the body for too long."""


class Body:
    """Body of a request.

    Args:
        request: Request whose body is read only here.
        max_bytes: Maximum size.
        idle_s: Time to wait for the next `LEAST_BYTES`, or for the end.
    """

    def __init__(self, request: Request, *, max_bytes: int, idle_s: float) -> None:
        self._request = request
        self._max_bytes = max_bytes
        self._idle_s = idle_s
        self._remaining_s = idle_s
        self._recent_bytes = 0

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the bytes in pieces of about `CHUNK`; the last may be shorter.

        Raises:
            BodyTooLargeError: The body is larger than the limit.
            IdleBodyError: The client was idle for too long.
            ClientGoneError: The client disconnected.
        """
        declared = self._request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > self._max_bytes:
            raise self._too_large()
        received, yielded, more = 0, 0, True
        parts: list[bytes] = []
        while more:
            data, more = await self._receive()
            received += len(data)
            if received > self._max_bytes:
                raise self._too_large()
            parts.append(data)
            if received - yielded >= CHUNK:
                yield b"".join(parts)
                parts.clear()
                yielded = received
        if received > yielded:
            yield b"".join(parts)

    async def json(self, kind: type[T]) -> T:
        """Return the content of a JSON body.

        Raises:
            InvalidInputError: It is not of this type.
        """
        text = b"".join([piece async for piece in self.pieces()])
        try:
            return msgspec.json.decode(text or b"{}", type=kind)
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
            f"the request's body is larger than {self._max_bytes} bytes; nothing was kept; the server's "
            "operator may raise LOCKGATE_BLOB_MAX_BYTES"
        )
