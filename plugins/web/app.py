"""The application: the JSON API, and the pages over it."""

from __future__ import annotations

from fastapi import Depends, FastAPI

from lockgate.plugins.web.access import Host


def web_app(host: Host) -> FastAPI:
    """Return the application, to be mounted at `/lockgate`.

    Args:
        host: The program that serves it.
    """
    return FastAPI(
        title="Lockgate",
        version="1",
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        dependencies=[Depends(host.may_read)],
    )
