"""Route that sweeps, and reports its progress line by line because a sweep may take long."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

import msgspec
from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lockgate.storage_core.blobs.http.messages import LINES, SweepLine, SweepRequest
from lockgate.storage_core.blobs.http.service import Service
from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.http.problems import ErrorBody, body_of

LOG: Final = logging.getLogger("lockgate.blobs")
BEAT_S: Final = 1.0
"""Time between two lines."""


def sweep_routes(service: Service) -> APIRouter:
    """Return the routes."""

    async def sweep(request: Request) -> Response:
        return _SweepResponse(service, await service.message(request, SweepRequest))

    routes = APIRouter(dependencies=[Depends(service.admit_to_all)])
    routes.add_api_route("/sweep", sweep, methods=["POST"], name="sweep")
    return routes


class _SweepResponse(Response):
    """Sweeps, and sends the progress. The sweep continues if the client disconnects."""

    def __init__(self, service: Service, request: SweepRequest) -> None:
        super().__init__(media_type=LINES)
        del self.headers["content-length"]
        self._service = service
        self._request = request
        self._latest = SweepLine()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - of the base
        """Sweep, and send lines until it ends."""
        sweeping = asyncio.ensure_future(self._service.transfer(self._sweep))
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        while not (await asyncio.wait({sweeping}, timeout=BEAT_S))[0]:
            await send(_body(self._latest, more=True))
        await send(_body(await sweeping, more=False))

    def _sweep(self) -> SweepLine:
        try:
            report = self._service.server.sweep(
                dry_run=self._request.dry_run,
                orphans=self._request.orphans,
                progress=self._note_progress,
            )
        except LockgateError as error:
            return SweepLine(error=body_of(error))
        except Exception:
            LOG.exception("the sweep failed part-way; what it deleted stays deleted")
            message = "the sweep failed part-way; what it deleted stays deleted; see the blob server's log"
            return SweepLine(error=ErrorBody("OutcomeUnknownError", message))
        return SweepLine(report=report)

    def _note_progress(self, step: str, done: int, total: int) -> None:
        self._latest = SweepLine(step=step, done=done, total=total)


def _body(line: SweepLine, *, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": msgspec.json.encode(line) + b"\n", "more_body": more}
