"""The blob server as a FastAPI application, and its routes for the bytes of one blob of any size.

It is stand-alone, or mounted in another one with its access policy.

Calls and statuses: docs/guides/blobs.md. Bodies are those of `messages`, except the bytes of blobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Annotated, Final

from fastapi import APIRouter, Depends, FastAPI, Query
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from lockgate.storage_core.blobs.blob_protocol import NewBlob
from lockgate.storage_core.blobs.http.access import AccessPolicy, allow_all
from lockgate.storage_core.blobs.http.call_routes import call_routes
from lockgate.storage_core.blobs.http.messages import BLOB, etag_of
from lockgate.storage_core.blobs.http.service import Service
from lockgate.storage_core.blobs.keys import UploadSetId, check_blob_job, check_blob_key, check_upload_set
from lockgate.storage_core.blobs.registry.blob_rows import BlobUse, Guarantee
from lockgate.storage_core.blobs.server.blob_server import BlobServer
from lockgate.storage_core.blobs.server.ingest import ReceivingBlob
from lockgate.storage_core.blobs.sources import CHUNK
from lockgate.storage_core.http.application import JsonResponse, new_application
from lockgate.storage_core.http.request_body import content_length
from lockgate.storage_core.http.server import IDLE_S
from lockgate.storage_core.ids import check_id
from lockgate.storage_core.settings import MIB

MAX_BYTES: Final = 64 * 1024 * MIB
"""Maximum size of a blob; default of `blob_max_bytes`."""


def blob_app(
    server: BlobServer,
    authorise: AccessPolicy = allow_all,
    *,
    max_bytes: int = MAX_BYTES,
    idle_s: float = IDLE_S,
) -> FastAPI:
    """Return the application.

    Args:
        server: Blob server that the application serves; stays open.
        authorise: Access policy. The default allows everything: use it only if the application that mounts
            this one has checked the request, or on a loopback address.
        max_bytes: Maximum size of a blob.
        idle_s: Time in which a client may send or receive next to nothing.
    """
    app = new_application("Lockgate blobs", "blob server", metrics="lockgate_blobs")
    service = Service(server, authorise, max_bytes=max_bytes, idle_s=idle_s)
    for routes in (_blob_routes, call_routes):
        app.include_router(routes(service))
    return app


def _blob_routes(service: Service) -> APIRouter:
    calls = _Transfers(service)
    routes = APIRouter(prefix="/jobs/{job_id}/blobs", dependencies=[Depends(service.admit)])
    routes.add_api_route("", calls.put, methods=["PUT"], name="put", status_code=201)
    routes.add_api_route("/{blob_key}", calls.get, methods=["GET"], name="get")
    routes.add_api_route("/{blob_key}", calls.get, methods=["HEAD"], name="head")
    return routes


class _BlobResponse(FileResponse):
    """A blob, also if it is deleted meanwhile; reads no further once the client is gone."""

    chunk_size = CHUNK


class _Transfers:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def put(
        self,
        *,
        request: Request,
        job_id: str,
        guarantee: Guarantee = "ha",
        use: BlobUse = "other",
        name: str = "",
        upload_set: str | None = None,
        owner: Annotated[tuple[str, ...], Query()] = (),
        lapse_s: Annotated[float | None, Query(ge=0)] = None,
        digest: str | None = None,
        request_id: str | None = None,
    ) -> Response:
        """Receive a blob; responds when it is durable."""
        check_blob_job(job_id)
        new = NewBlob(
            guarantee=guarantee,
            use=use,
            name=name,
            upload_set=None if upload_set is None else UploadSetId(check_upload_set(upload_set)),
            owners=owner,
            lapse_s=lapse_s,
            digest=digest,
            request_id=None if request_id is None else check_id("request id", request_id),
        )
        async with self._receiving(job_id, new, content_length(request)) as blob:
            await self._write(self._service.blob_pieces(request), blob)
            info = await self._service.transfer(self._service.server.ingest.keep, blob, job_id, new)
        return JsonResponse(info, 201, {"etag": etag_of(info.blob_key)})

    async def get(self, job_id: str, blob_key: str) -> Response:
        """Send a verified blob, or a range of it."""
        key = check_blob_key(blob_key)
        return _BlobResponse(
            await self._service.transfer(self._service.server.reader.path, job_id, key),
            media_type=BLOB,
            headers={"etag": etag_of(key), "cache-control": "private, max-age=31536000, immutable"},
        )

    @asynccontextmanager
    async def _receiving(
        self, job_id: str, new: NewBlob, size_bytes: int | None
    ) -> AsyncIterator[ReceivingBlob]:
        stack = ExitStack()
        receiving = self._service.server.ingest.receiving(job_id, new, size_bytes=size_bytes)
        blob = await self._service.transfer(stack.enter_context, receiving)
        try:
            yield blob
        finally:
            await self._service.transfer(stack.close)

    async def _write(self, pieces: AsyncIterator[bytes], blob: ReceivingBlob) -> None:
        """Write and hash each piece while the next one arrives."""
        writing: asyncio.Future[None] | None = None
        try:
            async for piece in pieces:
                if writing is not None:
                    await writing
                writing = asyncio.ensure_future(self._service.transfer(blob.write, piece))
        finally:
            if writing is not None:
                await writing
