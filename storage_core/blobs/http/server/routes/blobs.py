"""Routes that move a blob, of any size."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from starlette.requests import Request
from starlette.responses import Response

from lockgate.storage_core.blobs.http.messages import etag_of
from lockgate.storage_core.blobs.http.server.ranges import UnsatisfiableRangeError, asked_range
from lockgate.storage_core.blobs.http.server.request_body import Body
from lockgate.storage_core.blobs.http.server.responses import BlobBytes, Json, opened
from lockgate.storage_core.blobs.http.server.service import Service
from lockgate.storage_core.blobs.keys import UploadSetId, check_blob_job, check_blob_key, check_upload_set
from lockgate.storage_core.blobs.protocol import NewBlob
from lockgate.storage_core.blobs.registry.rows import BlobUse, Guarantee
from lockgate.storage_core.blobs.server.receiving import ReceivingBlob
from lockgate.storage_core.ids import check_id


def transfers(service: Service) -> APIRouter:
    """Return the routes."""
    of = _Transfers(service)
    routes = APIRouter(prefix="/jobs/{job_id}/blobs", dependencies=[Depends(service.admit_to_job)])
    routes.add_api_route("", of.put, methods=["PUT"], name="put", status_code=201)
    routes.add_api_route("/{blob_key}", of.get, methods=["GET"], name="get")
    routes.add_api_route("/{blob_key}", of.get, methods=["HEAD"], name="head")
    return routes


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
        """Take a blob in; answered when it is durable."""
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
        async with self._receiving(job_id, new, request.headers.get("content-length", "")) as blob:
            await self._pour(self._service.blob_body(request), blob)
            info = await self._service.move(self._service.server.ingest.keep, blob, job_id, new)
        return Json(info, 201, {"etag": etag_of(info.blob_key)})

    async def get(self, request: Request, job_id: str, blob_key: str) -> Response:
        """Hand a blob out, or a range of it."""
        key = check_blob_key(blob_key)
        tag = etag_of(key)
        find = partial(self._service.server.reader.path, job_id, key)
        blob = await self._service.move(opened, find, key)
        asked = request.headers.get("range")
        if request.headers.get("if-range", tag) != tag:
            asked = None
        try:
            part = asked_range(asked, blob.size_bytes)
        except UnsatisfiableRangeError:
            await self._service.move(blob.close)
            return Response(status_code=416, headers={"content-range": f"bytes */{blob.size_bytes}"})
        return BlobBytes(self._service, blob, part)

    @asynccontextmanager
    async def _receiving(self, job_id: str, new: NewBlob, length: str) -> AsyncIterator[ReceivingBlob]:
        held = ExitStack()
        size_bytes = int(length) if length.isdecimal() else None
        taking = self._service.server.ingest.receiving(job_id, new, size_bytes=size_bytes)
        blob = await self._service.move(held.enter_context, taking)
        try:
            yield blob
        finally:
            await self._service.move(held.close)

    async def _pour(self, body: Body, blob: ReceivingBlob) -> None:
        """Write and hash a piece while the next one comes."""
        writing: asyncio.Future[None] | None = None
        try:
            async for piece in body.pieces():
                if writing is not None:
                    await writing
                writing = asyncio.ensure_future(self._service.move(blob.write, piece))
        finally:
            if writing is not None:
                await writing
