"""The volume server as an application: each call of `Volume`, for the volumes that this process owns.

Arguments are in the query; bodies are bytes in pieces, complete and with a checksum before they are appended.
Source: docs/guides/appendable-files.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, TypeVar

from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from lockgate.storage_core.errors import AccessDeniedError, InvalidInputError, StoreUnavailableError
from lockgate.storage_core.files.volumes.local import LocalVolume
from lockgate.storage_core.files.volumes.protocol import VolumeId
from lockgate.storage_core.files.volumes.replica import BlockId, ReplicaState
from lockgate.storage_core.files.volumes.server.wire import (
    BYTES,
    KNOWN,
    PIECE_BYTES,
    Found,
    Length,
    Served,
    checksum,
    holds,
    knows_crc32c,
)
from lockgate.storage_core.http.application import JsonResponse, new_application
from lockgate.storage_core.http.request_body import body_pieces
from lockgate.storage_core.http.server import IDLE_S
from lockgate.storage_core.http.tokens import TokenFile
from lockgate.storage_core.stamp import Stamp

THREADS: Final = 64
"""Calls that wait for disks at once."""

_DIGITS: Final = 19
_LARGEST: Final = 2**63 - 1
_LARGEST_PAGE: Final = 10_000

T = TypeVar("T")


def volume_app(
    volumes: Mapping[VolumeId, LocalVolume], tokens: TokenFile | None = None, *, idle_s: float = IDLE_S
) -> FastAPI:
    """Return the application.

    Args:
        volumes: The volumes; they stay open.
        tokens: Tokens and the volumes that they open; None allows everything, for a loopback address.
        idle_s: Time in which a client may send or receive next to nothing.
    """
    calls = _Calls(volumes, tokens, idle_s)
    app = new_application("Lockgate volumes", "volume server", metrics="lockgate_volumes")
    volume, block = "/volumes/{volume}", "/volumes/{volume}/blocks/{block}"
    for path, method, call in (
        (volume, "GET", calls.look),
        (f"{volume}/replicas", "GET", calls.replicas),
        (f"{volume}/quarantined", "GET", calls.quarantined),
        (f"{volume}/usage", "GET", calls.usage),
        (block, "PUT", calls.create),
        (block, "GET", calls.stat),
        (block, "DELETE", calls.delete),
        (f"{block}/quarantine", "POST", calls.quarantine),
        (f"{block}/quarantine", "DELETE", calls.discard),
        (f"{block}/bytes", "POST", calls.append),
        (f"{block}/bytes", "GET", calls.read),
        (f"{block}/flush", "POST", calls.flush),
        (f"{block}/fence", "POST", calls.fence),
        (f"{block}/trim", "POST", calls.trim),
        (f"{block}/finish", "POST", calls.finish),
    ):
        app.add_api_route(path, call, methods=[method], name=call.__name__)
    return app


class _Calls:
    """The routes. None blocks the event loop."""

    def __init__(
        self, volumes: Mapping[VolumeId, LocalVolume], tokens: TokenFile | None, idle_s: float
    ) -> None:
        self._volumes = volumes
        self._tokens = tokens
        self._idle_s = idle_s
        self._threads = CapacityLimiter(THREADS)

    async def look(self, request: Request) -> Response:
        return JsonResponse(Served(volume=self._volume(request).id))

    async def replicas(self, request: Request) -> Response:
        return JsonResponse(await self._do(self._volume(request).replicas, *_page(request)))

    async def quarantined(self, request: Request) -> Response:
        return JsonResponse(await self._do(self._volume(request).quarantined, *_page(request)))

    async def usage(self, request: Request) -> Response:
        return JsonResponse(await self._do(self._volume(request).usage))

    async def create(self, request: Request) -> Response:
        return JsonResponse(await self._do(self._volume(request).create, _block(request), _stamp(request)))

    async def stat(self, request: Request) -> Response:
        return JsonResponse(await self._do(self._volume(request).stat, _block(request)))

    async def delete(self, request: Request) -> Response:
        done = await self._do(self._volume(request).delete, _block(request), _stamp(request))
        return JsonResponse(Found(is_found=done))

    async def quarantine(self, request: Request) -> Response:
        done = await self._do(self._volume(request).quarantine, _block(request), _stamp(request))
        return JsonResponse(Found(is_found=done))

    async def discard(self, request: Request) -> Response:
        return JsonResponse(Found(is_found=await self._do(self._volume(request).discard, _block(request))))

    async def append(self, request: Request) -> Response:
        volume, block, stamp = self._volume(request), _block(request), _stamp(request)
        offset = _number(request, "offset")
        pieces = body_pieces(request, max_bytes=PIECE_BYTES, idle_s=self._idle_s)
        data = b"".join([piece async for piece in pieces])
        if not holds(data, request.headers):
            raise StoreUnavailableError(
                f"block {block}: the checksum of {len(data)} bytes at {offset} does not hold; nothing was "
                "appended; send them again"
            )
        length = await self._do(volume.append, block, stamp, offset, data)
        return JsonResponse(Length(length_bytes=length), headers=KNOWN)

    async def flush(self, request: Request) -> Response:
        done = await self._do(self._volume(request).flush, _block(request), _stamp(request))
        return JsonResponse(Length(length_bytes=done))

    async def read(self, request: Request) -> Response:
        volume, block, stamp = self._volume(request), _block(request), _stamp(request)
        offset, size = _number(request, "offset"), _number(request, "size")
        if size > PIECE_BYTES:
            raise InvalidInputError(f"size={size}: one call reads at most {PIECE_BYTES} bytes")
        data = await self._do(volume.read, block, stamp, offset, size)
        return Response(
            data, media_type=BYTES, headers=checksum(data, is_crc32c=knows_crc32c(request.headers))
        )

    async def fence(self, request: Request) -> Response:
        return JsonResponse(await self._do(self._volume(request).fence, _block(request), _stamp(request)))

    async def trim(self, request: Request) -> Response:
        volume, block, stamp = self._volume(request), _block(request), _stamp(request)
        return JsonResponse(await self._do(volume.trim, block, stamp, _number(request, "length_bytes")))

    async def finish(self, request: Request) -> Response:
        volume, block, stamp = self._volume(request), _block(request), _stamp(request)
        length, state = _number(request, "length_bytes"), _state(request)
        return JsonResponse(await self._do(volume.finish, block, stamp, length, state))

    def _volume(self, request: Request) -> LocalVolume:
        """Return the volume of a request that is allowed.

        A volume that is not here is out of reach: "not found" would say that it has lost its replicas.
        """
        named = VolumeId(request.path_params["volume"])
        if self._tokens is not None:
            grant = self._tokens.grant_of(request.headers.get("authorization", ""))
            if not grant.opens(named):
                raise AccessDeniedError(
                    f"the bearer token does not open volume {named[:80]}; nothing was done; its line in the "
                    f"server's token file lists the volumes that it opens: {' '.join(grant.patterns)}"
                )
        found = self._volumes.get(named)
        if found is None:
            raise StoreUnavailableError(
                f"this volume server does not have the volume {named[:80]}; nothing was done; start the "
                "server of its directory, which registers its URL"
            )
        return found

    async def _do(self, work: Callable[..., T], *arguments: object) -> T:
        return await to_thread.run_sync(partial(work, *arguments), limiter=self._threads)


def _block(request: Request) -> BlockId:
    return BlockId(_parsed(request.path_params["block"], "block"))


def _number(request: Request, name: str) -> int:
    return _parsed(request.query_params.get(name, ""), name)


def _page(request: Request) -> tuple[BlockId | None, int]:
    limit = _number(request, "limit")
    if limit > _LARGEST_PAGE:
        raise InvalidInputError(f"limit={limit}: a page has at most {_LARGEST_PAGE} replicas")
    return BlockId(_number(request, "after")) if "after" in request.query_params else None, limit


def _parsed(text: str, name: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > _DIGITS or int(text) > _LARGEST:
        raise InvalidInputError(
            f"{name}={text[:_DIGITS]}: give a number from 0 to {_LARGEST}; nothing was done"
        )
    return int(text)


def _stamp(request: Request) -> Stamp:
    return Stamp.parse(request.query_params.get("stamp", ""))


def _state(request: Request) -> ReplicaState:
    named = request.query_params.get("state", "")
    if named not in (ReplicaState.WRITING, ReplicaState.SEALED):
        raise InvalidInputError(f"state={named[:_DIGITS]}: a replica is finished as writing or sealed")
    return ReplicaState(named)
