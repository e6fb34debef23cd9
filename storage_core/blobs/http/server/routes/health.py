"""Routes for health and metrics, without access policy."""

from __future__ import annotations

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from lockgate.storage_core.blobs.http.server.responses import JsonResponse
from lockgate.storage_core.blobs.http.server.service import Service


def health_routes(service: Service) -> APIRouter:
    """Return the routes."""

    async def health() -> Response:
        """Respond without the journal and the HA store, because downloads need neither."""
        return JsonResponse({"status": "ok"})

    async def metrics() -> Response:
        return Response(service.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)

    routes = APIRouter()
    routes.add_api_route("/health", health, methods=["GET"], name="health")
    routes.add_api_route("/metrics", metrics, methods=["GET"], name="metrics")
    return routes
