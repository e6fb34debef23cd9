"""The blob server as a FastAPI application, stand-alone or mounted in another one with its access policy.

Calls and statuses: docs/guides/blobs.md. Bodies are those of `messages`, except the bytes of blobs.
"""

from __future__ import annotations

from typing import Final

from fastapi import FastAPI

from lockgate.storage_core.blobs.http.access import AccessPolicy, allow_all
from lockgate.storage_core.blobs.http.blob_routes import blob_routes
from lockgate.storage_core.blobs.http.reference_routes import reference_routes
from lockgate.storage_core.blobs.http.service import Service
from lockgate.storage_core.blobs.http.sweep_route import sweep_routes
from lockgate.storage_core.blobs.server.blob_server import BlobServer
from lockgate.storage_core.http.application import new_application
from lockgate.storage_core.http.server import IDLE_S
from lockgate.storage_core.settings import MIB

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
    app = new_application("Lockgate blobs", "blob server", metrics="lockgate_blobs")
    service = Service(server, authorise, max_bytes=max_bytes, idle_s=idle_s)
    for routes in (blob_routes, reference_routes, sweep_routes):
        app.include_router(routes(service))
    return app
