"""Service shared by all routes: the blob server, its access policy, and its threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import Final, TypeVar

from anyio import CapacityLimiter, to_thread
from starlette.requests import Request

from lockgate.storage_core.blobs.http.access import (
    ALL_JOBS,
    NO_JOB_YET,
    AccessPolicy,
    RequestedAccess,
)
from lockgate.storage_core.blobs.server.blob_server import BlobServer
from lockgate.storage_core.errors import AccessDeniedError
from lockgate.storage_core.http.request_body import body_pieces, content_length, json_body
from lockgate.storage_core.journal import process_journal
from lockgate.storage_core.journal.session_token import AT_LEAST_HEADER
from lockgate.storage_core.settings import MIB

CALL_THREADS: Final = 16
"""Threads for short work on journal and disk, which transfers never occupy."""

TRANSFER_THREADS: Final = 32
"""Threads that move and hash bytes. A slow client occupies none: threads work on whole pieces."""

_CALL_BYTES: Final = 16 * MIB
"""Maximum size of a JSON body."""

_SMALL_BYTES: Final = MIB // 16
"""Size up to which any number of JSON bodies is read at once; almost every body is smaller."""

LARGE_BODIES: Final = 4
"""Larger JSON bodies that are read at once; without a limit, one token could take all memory."""

_READS: Final = frozenset({"GET", "HEAD"})

T = TypeVar("T")


class Service:
    """Asynchronous access to a blob server; arguments as for `blob_app`. No method blocks the event loop."""

    def __init__(self, server: BlobServer, authorise: AccessPolicy, *, max_bytes: int, idle_s: float) -> None:
        self.server = server
        self._authorise = authorise
        self._idle_s = idle_s
        self._large_bodies = asyncio.Semaphore(LARGE_BODIES)
        self._max_bytes = max_bytes
        self._calls = CapacityLimiter(CALL_THREADS)
        self._transfers = CapacityLimiter(TRANSFER_THREADS)

    async def admit(self, request: Request, job_id: str) -> None:
        """Return if a request that concerns a job, or `ALL_JOBS`, is allowed; raise if not."""
        access = RequestedAccess(job_id=job_id, changes=request.method not in _READS)
        await self._authorise(request, access)
        await self._accept_stamps(request)

    async def admit_to_all(self, request: Request) -> None:
        """Admit a request that concerns all jobs."""
        await self.admit(request, ALL_JOBS)

    async def admit_without_job(self, request: Request) -> None:
        """Admit a request whose jobs are not known yet."""
        await self.admit(request, NO_JOB_YET)

    def blob_pieces(self, request: Request) -> AsyncIterator[bytes]:
        """Yield the body of a request that uploads a blob."""
        return body_pieces(
            request, max_bytes=self._max_bytes, idle_s=self._idle_s, setting="LOCKGATE_BLOB_MAX_BYTES"
        )

    async def message(self, request: Request, kind: type[T]) -> T:
        """Return the JSON body of a request."""
        declared = content_length(request)
        is_large = declared is None or declared > _SMALL_BYTES
        async with self._large_bodies if is_large else nullcontext():
            return await json_body(request, kind, max_bytes=_CALL_BYTES, idle_s=self._idle_s)

    async def call(self, work: Callable[..., T], *arguments: object, **options: object) -> T:
        """Do short work in a thread."""
        return await to_thread.run_sync(partial(work, *arguments, **options), limiter=self._calls)

    async def transfer(self, work: Callable[..., T], *arguments: object) -> T:
        """Do work on a blob's bytes in a thread."""
        return await to_thread.run_sync(work, *arguments, limiter=self._transfers)

    async def _accept_stamps(self, request: Request) -> None:
        """Accept stamps, which affect every client's reads, only of a sender that may change all jobs."""
        if AT_LEAST_HEADER in request.headers:
            with suppress(AccessDeniedError):
                await self._authorise(request, RequestedAccess(job_id=ALL_JOBS, changes=True))
                process_journal.extract(request.headers)
