"""The application: the JSON API, and the pages over it."""

from __future__ import annotations

from typing import Any

from fastapi import Depends, FastAPI, Request
from starlette.middleware import Middleware

from lockgate.plugins.web.access import Host
from lockgate.plugins.web.api import (
    blobs,
    charts,
    destinations,
    job,
    job_files,
    job_log,
    jobs,
    journal,
    turns,
    uploads,
)
from lockgate.plugins.web.api.actions import action_routes
from lockgate.plugins.web.middleware import AnswerMiddleware
from lockgate.plugins.web.pages.routes import page_routes
from lockgate.plugins.web.problems import answer_problems
from lockgate.plugins.web.request_reads import Reads

_READS = (
    jobs.router,  # before those of one job: `/jobs/counts` is no job
    charts.router,
    job.router,
    job_files.router,
    job_log.router,
    destinations.router,
    turns.router,
    uploads.router,
    blobs.router,
    journal.router,
)


def web_app(host: Host, reads: Reads | None = None) -> FastAPI:
    """Return the application, to be mounted at `/lockgate`.

    Args:
        host: The program that serves it.
        reads: Reads of the journal and of stores; by default with the settings of the host.
    """
    app = FastAPI(
        title="Lockgate",
        version="1",
        openapi_url=None,  # FastAPI's own route asks for no permission
        docs_url=None,
        redoc_url=None,
        dependencies=[Depends(host.may_read)],
        middleware=[Middleware(AnswerMiddleware)],
    )
    app.state.host = host
    app.state.reads = reads or Reads(host.settings, destinations=host.destinations)
    answer_problems(app)

    @app.get("/api/v1/openapi.json", include_in_schema=False)
    def openapi(request: Request) -> dict[str, Any]:
        return {**app.openapi(), "servers": [{"url": request.scope.get("root_path") or "/"}]}

    for routes in (*_READS, action_routes(host)):
        app.include_router(routes, prefix="/api/v1")
    app.include_router(page_routes(host))
    return app
