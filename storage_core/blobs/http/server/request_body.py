"""The body of a request: bounded in size and in idleness, and never in memory whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final, TypeVar

import msgspec
from starlette.requests import Request

from lockgate.storage_core.blobs.sources import CHUNK
from lockgate.storage_core.errors import InvalidInputError, StoreUnavailableError

LEAST_BYTES: Final = 16 * 1024
"""That bring a client its whole time anew: who sends byte after byte is as good as idle."""

T = TypeVar("T")


class ClientGoneError(Exception):
    """The client went away amid its request: nobody hears an answer."""


class BodyTooLargeError(InvalidInputError):
    """The body has more bytes than are taken."""


class IdleBodyError(StoreUnavailableError):
    """Too little came of the body for too long."""


class Body:
    """What comes with a request.

    Args:
        request: Nobody else reads its body.
        max_bytes: That are taken.
        idle_s: For which its next `LEAST_BYTES`, or its end, may be waited for.
    """

    def __init__(self, request: Request, *, max_bytes: int, idle_s: float) -> None:
        self._request = request
        self._max_bytes = max_bytes
        self._idle_s = idle_s
        self._patience_s = idle_s
        self._came_since = 0

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
        loop = asyncio.get_running_loop()
        asked_s = loop.time()
        try:
            async with asyncio.timeout(self._patience_s):
                message = await self._request.receive()
        except TimeoutError:
            raise IdleBodyError(
                f"less than {LEAST_BYTES} bytes came of the request's body in {self._idle_s:g} s; nothing "
                "was kept; send it again"
            ) from None
        if message["type"] != "http.request":
            raise ClientGoneError
        data = message.get("body", b"")
        self._wait_on(len(data), loop.time() - asked_s)
        return data, message.get("more_body", False)

    def _wait_on(self, came: int, waited_s: float) -> None:
        """Count what came, and for how long it was waited for; what is done with it meanwhile is our time."""
        self._patience_s -= waited_s
        self._came_since += came
        if self._came_since >= LEAST_BYTES:
            self._patience_s, self._came_since = self._idle_s, 0

    def _too_large(self) -> BodyTooLargeError:
        return BodyTooLargeError(
            f"the request's body is larger than {self._max_bytes} bytes; nothing was kept; the server's "
            "operator may raise LOCKGATE_BLOB_MAX_BYTES"
        )
