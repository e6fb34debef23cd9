"""Read the body of a request, with limits on its size and on the time in which nothing arrives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final, TypeVar

import msgspec
from starlette.requests import Request

from lockgate.storage_core.decoding import decode_json
from lockgate.storage_core.errors import InvalidInputError, StoreUnavailableError

PIECE_BYTES: Final = 1024 * 1024

T = TypeVar("T")


class BodyTooLargeError(InvalidInputError):
    """The body is larger than the limit."""


class IdleBodyError(StoreUnavailableError):
    """The client sent nothing of the body for too long."""


def content_length(request: Request) -> int | None:
    """Return the declared size of a request's body, None if it declares none."""
    declared = request.headers.get("content-length")
    return None if declared is None else int(declared)  # the server has checked that it is a number


async def body_pieces(
    request: Request, *, max_bytes: int, idle_s: float, setting: str = ""
) -> AsyncIterator[bytes]:
    """Yield the bytes of a request's body in pieces of about `PIECE_BYTES`; the last may be shorter.

    Args:
        request: Request whose body is read only here.
        max_bytes: Maximum size.
        idle_s: Time to wait for more bytes.
        setting: Variable by which an operator raises `max_bytes`; empty: none.

    Raises:
        BodyTooLargeError: The body is larger than the limit.
        IdleBodyError: The client was idle for too long.
        ClientDisconnect: The client disconnected.
    """
    stream = request.stream()
    declared = content_length(request) or 0
    received, parts, size = 0, list[bytes](), 0
    while True:
        if max(received, declared) > max_bytes:
            raise BodyTooLargeError(
                f"the request's body is larger than {max_bytes} bytes; nothing was kept"
                + (f"; the server's operator may raise {setting}" if setting else "")
            )
        try:
            async with asyncio.timeout(idle_s):
                data = await anext(stream, None)
        except TimeoutError:
            raise IdleBodyError(
                f"nothing of the request's body came in {idle_s:g} s; nothing was kept; send it again"
            ) from None
        if data is None:
            break
        received += len(data)
        parts.append(data)
        size += len(data)
        if size >= PIECE_BYTES:
            yield b"".join(parts)
            parts.clear()
            size = 0
    if size:
        yield b"".join(parts)


async def json_body(request: Request, kind: type[T], *, max_bytes: int, idle_s: float) -> T:
    """Return the content of a JSON body; an empty one is an empty object.

    Args:
        request: Request whose body is read only here.
        kind: Type of the content.
        max_bytes: Maximum size.
        idle_s: Time to wait for more bytes.

    Raises:
        InvalidInputError: It is not of this type, or too large.
        IdleBodyError: The client was idle for too long.
    """
    text = b"".join([piece async for piece in body_pieces(request, max_bytes=max_bytes, idle_s=idle_s)])
    try:
        return decode_json(text or b"{}", kind)
    except msgspec.MsgspecError as error:
        raise InvalidInputError(f"the request's JSON cannot be read: {error}; nothing was done") from None
