"""The body of a request: bounded in size and in idleness, and never in memory whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

import msgspec
from starlette.requests import Request

from storage_core.blobs.local import CHUNK
from storage_core.errors import InvalidInputError, StoreUnavailableError

T = TypeVar("T")


class ClientGoneError(Exception):
    """The client went away amid its request: nobody hears an answer."""


class BodyTooLargeError(InvalidInputError):
    """The body has more bytes than are taken."""


class IdleBodyError(StoreUnavailableError):
    """Nothing came of the body for too long."""


class Body:
    """What comes with a request.

    Args:
        request: Nobody else reads its body.
        max_bytes: That are taken.
        idle_s: For which nothing may come.
    """

    def __init__(self, request: Request, *, max_bytes: int, idle_s: float) -> None:
        self._request = request
        self._max_bytes = max_bytes
        self._idle_s = idle_s

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield it, each piece but the last about `CHUNK` long.

        Raises:
            BodyTooLargeError: There is more of it.
            IdleBodyError: The client fell silent.
            ClientGoneError: The client went away.
        """
        declared = self._request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > self._max_bytes:
            raise self._too_large()
        came, given, more = 0, 0, True
        parts: list[bytes] = []
        while more:
            data, more = await self._received()
            came += len(data)
            if came > self._max_bytes:
                raise self._too_large()
            parts.append(data)
            if came - given >= CHUNK:
                yield b"".join(parts)
                parts.clear()
                given = came
        if came > given:
            yield b"".join(parts)

    async def told(self, kind: type[T]) -> T:
        """Return it, read as JSON.

        Raises:
            InvalidInputError: It is not what the call takes.
        """
        text = b"".join([piece async for piece in self.pieces()])
        try:
            return msgspec.json.decode(text or b"{}", type=kind)
        except msgspec.MsgspecError as error:
            raise InvalidInputError(f"the request's JSON cannot be read: {error}; nothing was done") from None

    async def _received(self) -> tuple[bytes, bool]:
        try:
            async with asyncio.timeout(self._idle_s):
                message = await self._request.receive()
        except TimeoutError:
            raise IdleBodyError(
                f"nothing came of the request's body for {self._idle_s:g} s; nothing was kept; send it again"
            ) from None
        if message["type"] != "http.request":
            raise ClientGoneError
        return message.get("body", b""), message.get("more_body", False)

    def _too_large(self) -> BodyTooLargeError:
        return BodyTooLargeError(
            f"the request's body is larger than {self._max_bytes} bytes; nothing was kept; the server's "
            "operator may raise LOCKGATE_BLOB_MAX_BYTES"
        )
