"""The blob server as an application: by itself, or mounted by another one under its own permissions.

    PUT    /jobs/{job}/blobs?guarantee=&use=&name=&upload_set=&owner=&lapse_s=&digest=&request_id=
    GET    /jobs/{job}/blobs/{key}            HEAD too; ranges; the entity tag is the key
    POST   /jobs/{job}/put-many, get-many     frames: see `frames`
    POST   /jobs/{job}/sets, /sets/{set}/complete, /sets/renew
    POST   /jobs/{job}/submit, fail, finish
    POST   /jobs/{job}/blobs/{key}/refer, drop, recheck; /owners/drop
    GET    /jobs/{job}, /jobs                 how many blobs a job has, since when, what ends it
    GET    /jobs/{job}/blobs, /blobs, /references, /now
    POST   /verify; /sweep                    lines: see `sweeping`
    GET    /health, /metrics                  nobody is asked who he is

Everything else is JSON: see `wire`.
"""

from __future__ import annotations

from typing import Final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from lockgate.storage_core.blobs.http.messages import Trouble
from lockgate.storage_core.blobs.http.server.auth.policy import Authorise, anyone
from lockgate.storage_core.blobs.http.server.middleware import Edge
from lockgate.storage_core.blobs.http.server.responses import Json, troubled, unexpected
from lockgate.storage_core.blobs.http.server.routes.batches import many
from lockgate.storage_core.blobs.http.server.routes.blobs import transfers
from lockgate.storage_core.blobs.http.server.routes.health import health
from lockgate.storage_core.blobs.http.server.routes.maintenance import upkeep
from lockgate.storage_core.blobs.http.server.routes.references import calls
from lockgate.storage_core.blobs.http.server.service import Service
from lockgate.storage_core.blobs.server.server import BlobServer
from lockgate.storage_core.errors import InvalidInputError, LockgateError
from lockgate.storage_core.settings import MIB

IDLE_S: Final = 60.0
"""For which a client may send, or take, next to nothing: the default of `blob_server_idle_s`."""

MAX_BYTES: Final = 64 * 1024 * MIB
"""Of a blob: the default of `blob_max_bytes`."""


def blob_app(
    server: BlobServer,
    authorise: Authorise = anyone,
    *,
    max_bytes: int = MAX_BYTES,
    idle_s: float = IDLE_S,
) -> FastAPI:
    """Return the application.

    Args:
        server: Behind it; stays open.
        authorise: Asked before each call; by default everybody may do everything, so the application that
            mounts this one asks, or only this machine reaches it.
        max_bytes: Of a blob.
        idle_s: For which a client may send, or take, next to nothing.
    """
    service = Service(server, authorise, max_bytes=max_bytes, idle_s=idle_s)
    app = FastAPI(
        title="Lockgate blobs",
        openapi_url=None,
        middleware=[Middleware(Edge, service=service)],
        exception_handlers={
            LockgateError: _told,
            RequestValidationError: _malformed,
            HTTPException: _unrouted,
            Exception: unexpected,
        },
    )
    for routes in (transfers, many, calls, upkeep, health):
        app.include_router(routes(service))
    return app


async def _told(_: Request, error: Exception) -> Response:
    if isinstance(error, LockgateError):
        return troubled(error)
    raise error


async def _malformed(_: Request, error: Exception) -> Response:
    faults = "; ".join(
        f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
        for fault in (error.errors() if isinstance(error, RequestValidationError) else ())
    )
    return troubled(InvalidInputError(f"the request cannot be: {faults}; nothing was done"))


async def _unrouted(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    words = f"{request.method} {request.url.path} is no call of a blob server"
    return Json(Trouble(error="InvalidInputError", message=words), status)
