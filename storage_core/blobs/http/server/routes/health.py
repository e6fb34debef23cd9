"""Routes that tell how the server does: nobody is asked who he is."""

from __future__ import annotations

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from lockgate.storage_core.blobs.http.server.responses import Json
from lockgate.storage_core.blobs.http.server.service import Service


def health(service: Service) -> APIRouter:
    """Return the routes."""
    of = _Health(service)
    routes = APIRouter()
    routes.add_api_route("/health", of.live, methods=["GET"], name="health")
    routes.add_api_route("/metrics", of.figures, methods=["GET"], name="metrics")
    return routes


class _Health:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def live(self) -> Response:
        """Answer: downloads need neither the journal nor the HA store, so neither is asked here."""
        return Json({"status": "ok"})

    async def figures(self) -> Response:
        return Response(self._service.figures.exposition(), media_type=CONTENT_TYPE_LATEST)
