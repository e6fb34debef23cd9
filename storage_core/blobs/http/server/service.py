"""What all routes share: the server behind them, who may ask, and the threads in which it works."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from anyio import CapacityLimiter, to_thread
from starlette.requests import Request

from lockgate.storage_core.blobs.http.server.auth.policy import ALL_JOBS, NO_JOB_YET, AccessPolicy, Wanted
from lockgate.storage_core.blobs.http.server.metrics import Figures
from lockgate.storage_core.blobs.http.server.request_body import Body
from lockgate.storage_core.blobs.server.server import BlobServer
from lockgate.storage_core.errors import AccessDeniedError
from lockgate.storage_core.journal import propagation
from lockgate.storage_core.journal.session_token import AT_LEAST_HEADER
from lockgate.storage_core.settings import MIB

CALL_THREADS: Final = 16
"""For what asks the journal and the disk for little: never all taken by transfers."""

TRANSFER_THREADS: Final = 32
"""For what moves and hashes bytes. A slow client holds none: threads work on whole pieces."""

_CALL_BYTES: Final = 16 * MIB
"""Of a call's JSON."""

_READS: Final = frozenset({"GET", "HEAD"})

T = TypeVar("T")


class Service:
    """A blob server, as the routes use it. Nothing of it blocks the event loop.

    Args:
        server: Behind the routes.
        authorise: Asked before each call.
        max_bytes: Of a blob.
        idle_s: For which a client may send, or take, next to nothing.
    """

    def __init__(self, server: BlobServer, authorise: AccessPolicy, *, max_bytes: int, idle_s: float) -> None:
        self.server = server
        self.figures = Figures()
        self.idle_s = idle_s
        self._authorise = authorise
        self._max_bytes = max_bytes
        self._calls = CapacityLimiter(CALL_THREADS)
        self._transfers = CapacityLimiter(TRANSFER_THREADS)

    async def admit(self, request: Request, job_id: str) -> None:
        """Let a request go on if it may.

        Args:
            request: Of the client.
            job_id: See `Wanted`.
        """
        await self._authorise(request, Wanted(job_id=job_id, changes=request.method not in _READS))
        await self._heed(request)

    async def admit_to_job(self, request: Request, job_id: str) -> None:
        """Let a request go on that names a job in its path."""
        await self.admit(request, job_id)

    async def admit_to_all(self, request: Request) -> None:
        """Let a request go on that is about all jobs."""
        await self.admit(request, ALL_JOBS)

    async def admit_known(self, request: Request) -> None:
        """Let a request go on that does not name its jobs yet."""
        await self.admit(request, NO_JOB_YET)

    def blob_body(self, request: Request) -> Body:
        """Return the body of a request that brings a blob."""
        return Body(request, max_bytes=self._max_bytes, idle_s=self.idle_s)

    async def told(self, request: Request, kind: type[T]) -> T:
        """Return what a call says."""
        return await Body(request, max_bytes=_CALL_BYTES, idle_s=self.idle_s).told(kind)

    async def call(self, work: Callable[..., T], *arguments: object, **options: object) -> T:
        """Do something short in a thread."""
        return await to_thread.run_sync(partial(work, *arguments, **options), limiter=self._calls)

    async def move(self, work: Callable[..., T], *arguments: object) -> T:
        """Do something with a blob's bytes in a thread."""
        return await to_thread.run_sync(work, *arguments, limiter=self._transfers)

    async def _heed(self, request: Request) -> None:
        """Heed what a sender has seen of journals; that counts for everybody, so it must open all jobs."""
        if AT_LEAST_HEADER in request.headers:
            with suppress(AccessDeniedError):
                await self._authorise(request, Wanted(job_id=ALL_JOBS, changes=True))
                propagation.extract(request.headers)
