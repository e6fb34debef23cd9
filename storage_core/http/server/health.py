"""Routes for health and metrics, without access policy."""

from __future__ import annotations

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from lockgate.storage_core.http.server.json_responses import JsonResponse
from lockgate.storage_core.http.server.request_metrics import Metrics


def health_routes(recorded: Metrics) -> APIRouter:
    """Return the routes."""

    async def health() -> Response:
        """Respond without the journal and any store, because reads need neither."""
        return JsonResponse({"status": "ok"})

    async def metrics() -> Response:
        return Response(recorded.exposition(), media_type=CONTENT_TYPE_LATEST)

    routes = APIRouter()
    routes.add_api_route("/health", health, methods=["GET"], name="health")
    routes.add_api_route("/metrics", metrics, methods=["GET"], name="metrics")
    return routes
