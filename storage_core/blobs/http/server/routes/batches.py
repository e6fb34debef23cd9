"""Routes that move many small blobs of a job in one request."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Iterable
from contextlib import aclosing
from functools import partial
from typing import Final, TypeVar

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lockgate.storage_core.blobs.http.client.batches import BATCH, BATCH_BYTES
from lockgate.storage_core.blobs.http.frames import (
    FRAME_BYTES,
    FRAMES,
    ArrivingFrames,
    GotFrame,
    PutOutcome,
    frame,
)
from lockgate.storage_core.blobs.http.messages import FRAMES as FRAMES_TYPE
from lockgate.storage_core.blobs.http.messages import GetMany, trouble_of
from lockgate.storage_core.blobs.http.server.responses import Json, opened
from lockgate.storage_core.blobs.http.server.service import Service
from lockgate.storage_core.blobs.keys import BlobKey, check_blob_job, check_blob_key
from lockgate.storage_core.blobs.protocol import BlobInfo, NewBlob
from lockgate.storage_core.blobs.server.put_batch import put_many
from lockgate.storage_core.errors import InvalidInputError, LockgateError

AT_A_TIME: Final = 16
"""Blobs of one request that are read, or wait to be sent."""

T = TypeVar("T")


def many(service: Service) -> APIRouter:
    """Return the routes."""
    of = _Many(service)
    routes = APIRouter(prefix="/jobs/{job_id}", dependencies=[Depends(service.admit_to_job)])
    routes.add_api_route("/put-many", of.put, methods=["POST"], name="put_many")
    routes.add_api_route("/get-many", of.get, methods=["POST"], name="get_many")
    return routes


class _Many:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def put(self, request: Request, job_id: str) -> Response:
        """Take blobs in, each alone; answered when all are durable or refused, in their order."""
        check_blob_job(job_id)
        outcomes: list[PutOutcome] = []
        async for batch in _batched(ArrivingFrames(self._service.blob_body(request).pieces())):
            put = await self._service.move(put_many, self._service.server, job_id, batch)
            outcomes += map(_told, put)
        return Json(outcomes)

    async def get(self, request: Request, job_id: str) -> Response:
        """Hand blobs out, in the order that was asked for; one that is not there takes none with it."""
        wanted = await self._service.told(request, GetMany)
        if len(wanted.blob_keys) > FRAMES:
            raise InvalidInputError(f"{len(wanted.blob_keys)} blobs: one request gets {FRAMES} at most")
        keys = [check_blob_key(key) for key in wanted.blob_keys]
        return _FramesOut(self._get(job_id, key) for key in keys)

    async def _get(self, job_id: str, blob_key: BlobKey) -> tuple[GotFrame, bytes]:
        try:
            data = await self._service.move(self._read, job_id, blob_key)
        except LockgateError as error:
            return GotFrame(blob_key=blob_key, trouble=trouble_of(error)), b""
        return GotFrame(blob_key=blob_key, size_bytes=len(data)), data

    def _read(self, job_id: str, blob_key: BlobKey) -> bytes:
        blob = opened(partial(self._service.server.path, job_id, blob_key), blob_key)
        with blob.file:
            if blob.size_bytes > FRAME_BYTES:
                raise InvalidInputError(
                    f"blob {job_id}/{blob_key} has {blob.size_bytes} bytes, more than "
                    f"{FRAME_BYTES}: get it alone"
                )
            return blob.file.read()


class _FramesOut(Response):
    """Blobs as frames."""

    def __init__(self, gets: Iterable[Awaitable[tuple[GotFrame, bytes]]]) -> None:
        super().__init__(media_type=FRAMES_TYPE)
        del self.headers["content-length"]
        self._gets = gets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - of the base
        """Send them."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with aclosing(_in_order(_each(self._gets))) as found:
            async for got, data in found:
                piece = b"".join(frame(got, data))
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _told(outcome: BlobInfo | LockgateError) -> PutOutcome:
    if isinstance(outcome, LockgateError):
        return PutOutcome(trouble=trouble_of(outcome))
    return PutOutcome(info=outcome)


async def _batched(
    frames: AsyncIterable[tuple[NewBlob, bytes]],
) -> AsyncIterator[list[tuple[NewBlob, bytes]]]:
    """Yield frames as they are put together: few enough to be in memory."""
    batch: list[tuple[NewBlob, bytes]] = []
    size_bytes = 0
    async for new, data in frames:
        batch.append((new, data))
        size_bytes += len(data)
        if len(batch) == BATCH or size_bytes >= BATCH_BYTES:
            yield batch
            batch, size_bytes = [], 0
    if batch:
        yield batch


async def _each(items: Iterable[T]) -> AsyncIterator[T]:
    for item in items:
        yield item


async def _in_order(works: AsyncIterator[Awaitable[T]]) -> AsyncGenerator[T, None]:
    """Yield what comes of works in their order, some under way at a time; ends none of them half-way."""
    running: deque[asyncio.Future[T]] = deque()
    try:
        async for work in works:
            running.append(asyncio.ensure_future(work))
            if len(running) >= AT_A_TIME:
                yield await running.popleft()
        while running:
            yield await running.popleft()
    finally:
        await asyncio.gather(*running, return_exceptions=True)
