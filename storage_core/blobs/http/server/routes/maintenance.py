"""The route that sweeps: it may take long, so its answer tells how far it is, line by line."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

import msgspec
from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lockgate.storage_core.blobs.http.client.sweep import SweepLine, SweepOrder
from lockgate.storage_core.blobs.http.messages import LINES, Trouble, trouble_of
from lockgate.storage_core.blobs.http.server.service import Service
from lockgate.storage_core.blobs.sweep.sweep import sweep
from lockgate.storage_core.errors import LockgateError

LOG: Final = logging.getLogger("lockgate.blobs")
BEAT_S: Final = 1.0
"""Between two lines."""


def upkeep(service: Service) -> APIRouter:
    """Return the routes."""
    routes = APIRouter(dependencies=[Depends(service.admit_to_all)])
    routes.add_api_route("/sweep", _Upkeep(service).sweep, methods=["POST"], name="sweep")
    return routes


class _Upkeep:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def sweep(self, request: Request) -> Response:
        return _SweepLines(self._service, await self._service.told(request, SweepOrder))


class _SweepLines(Response):
    """A sweep, as it goes. It goes on to its end if the client goes away."""

    def __init__(self, service: Service, order: SweepOrder) -> None:
        super().__init__(media_type=LINES)
        del self.headers["content-length"]
        self._service = service
        self._order = order
        self._latest = SweepLine()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - of the base
        """Sweep, and tell."""
        sweeping = asyncio.ensure_future(self._service.move(self._sweep))
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        while not (await asyncio.wait({sweeping}, timeout=BEAT_S))[0]:
            await send(_body(self._latest, more=True))
        await send(_body(await sweeping, more=False))

    def _sweep(self) -> SweepLine:
        try:
            report = sweep(
                self._service.server,
                dry_run=self._order.dry_run,
                orphans=self._order.orphans,
                progress=self._hear,
            )
        except LockgateError as error:
            return SweepLine(trouble=trouble_of(error))
        except Exception:
            LOG.exception("a sweep met a fault; what was swept is swept")
            words = "the sweep met a fault; what was swept is swept; the blob server's log tells which"
            return SweepLine(trouble=Trouble("OutcomeUnknownError", words))
        return SweepLine(report=report)

    def _hear(self, step: str, done: int, total: int) -> None:
        self._latest = SweepLine(step=step, done=done, total=total)


def _body(line: SweepLine, *, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": msgspec.json.encode(line) + b"\n", "more_body": more}
