"""The blob server as a FastAPI application, stand-alone or mounted in another one with its access policy.

Calls and statuses: docs/guides/blob-server.md. Bodies are those of `messages`, except the bytes of blobs.
"""

from __future__ import annotations

from typing import Final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from lockgate.storage_core.blobs.http.messages import ErrorBody
from lockgate.storage_core.blobs.http.server.auth.policy import AccessPolicy, allow_all
from lockgate.storage_core.blobs.http.server.middleware import RequestMiddleware
from lockgate.storage_core.blobs.http.server.responses import JsonResponse, error_response, fault_response
from lockgate.storage_core.blobs.http.server.routes.blobs import blob_routes
from lockgate.storage_core.blobs.http.server.routes.health import health_routes
from lockgate.storage_core.blobs.http.server.routes.references import reference_routes
from lockgate.storage_core.blobs.http.server.routes.sweeping import sweep_routes
from lockgate.storage_core.blobs.http.server.service import Service
from lockgate.storage_core.blobs.server.server import BlobServer
from lockgate.storage_core.errors import InvalidInputError, LockgateError
from lockgate.storage_core.settings import MIB

IDLE_S: Final = 60.0
"""Time in which a client may send or receive next to nothing; default of `blob_server_idle_s`."""

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
    service = Service(server, authorise, max_bytes=max_bytes, idle_s=idle_s)
    app = FastAPI(
        title="Lockgate blobs",
        openapi_url=None,
        middleware=[Middleware(RequestMiddleware, service=service)],
        exception_handlers={
            LockgateError: _refused,
            RequestValidationError: _malformed,
            HTTPException: _unrouted,
            Exception: fault_response,
        },
    )
    for routes in (blob_routes, reference_routes, sweep_routes, health_routes):
        app.include_router(routes(service))
    return app


async def _refused(_: Request, error: Exception) -> Response:
    if isinstance(error, LockgateError):
        return error_response(error)
    raise error


async def _malformed(_: Request, error: Exception) -> Response:
    faults = "; ".join(
        f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
        for fault in (error.errors() if isinstance(error, RequestValidationError) else ())
    )
    return error_response(InvalidInputError(f"the request is not valid: {faults}; nothing was done"))


async def _unrouted(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    message = f"a blob server has no call {request.method} {request.url.path}"
    return JsonResponse(ErrorBody(error="InvalidInputError", message=message), status)
