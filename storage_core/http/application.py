"""What every application of ours does around its routes: errors as responses, metrics, session tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from functools import cache
from typing import Any, Final

import msgspec
from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST, Counter, Histogram, generate_latest
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lockgate.storage_core.errors import InvalidInputError, LockgateError
from lockgate.storage_core.http.problems import ErrorBody, body_of, status_of
from lockgate.storage_core.http.request_body import BodyTooLargeError, IdleBodyError
from lockgate.storage_core.http.tokens import UnauthenticatedError
from lockgate.storage_core.journal import process_journal

_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_GONE: Final = 499
"""Status that no client receives: it disconnected before its request was complete."""


def new_application(title: str, server: str, *, metrics: str) -> FastAPI:
    """Return an application without routes, except those for health and metrics.

    Args:
        title: Its title.
        server: What messages call the server.
        metrics: Beginning of the names of its metrics.
    """
    app = FastAPI(
        title=title,
        openapi_url=None,
        middleware=[Middleware(RequestMiddleware, metrics=metrics)],
        exception_handlers=_exception_handlers(server),
    )
    app.include_router(_health_routes())
    return app


class JsonResponse(Response):
    """A message as JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Encode a message."""
        return msgspec.json.encode(content)


class RequestMiddleware:
    """Records each request, and adds the session token to its response.

    Args:
        app: The routes.
        metrics: Beginning of the metrics' names.
    """

    def __init__(self, app: ASGIApp, metrics: str) -> None:
        self._app = app
        self._requests, self._bytes, self._seconds = _metrics(metrics)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and record it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s = time.perf_counter()
        outcome, status, received, sent = "gone", 0, 0, 0

        async def receive_counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            return message

        async def send_counted(message: Message) -> None:
            nonlocal outcome, status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update(process_journal.inject())
            elif not message.get("more_body", False):
                outcome = _outcome(status)
            sent += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive_counted, send_counted)
        except BaseException:
            outcome = "failed"
            raise
        finally:
            route = getattr(scope.get("route"), "name", "unknown")
            self._requests.labels(route, outcome).inc()
            self._seconds.labels(route, outcome).observe(time.perf_counter() - began_s)
            self._bytes.labels(route, "in").inc(received)
            self._bytes.labels(route, "out").inc(sent)


@cache
def _metrics(prefix: str) -> tuple[Counter, Counter, Histogram]:
    """Return the metrics of all applications of one kind in this process."""
    labels = ("verb", "outcome")
    return (
        Counter(f"{prefix}_requests", "Requests answered", labels),
        Counter(f"{prefix}_bytes", "Bytes of bodies", ("verb", "direction")),
        Histogram(
            f"{prefix}_request_seconds", "A request, until its answer is sent", labels, buckets=_SECONDS
        ),
    )


def _outcome(status: int) -> str:
    if status == _GONE:
        return "gone"
    return "ok" if status < 400 else "refused" if status < 500 else "failed"


def _health_routes() -> APIRouter:
    """Return the routes for health and metrics, without access policy."""

    async def health() -> Response:
        """Respond without the journal and any store, because reads need neither."""
        return JsonResponse({"status": "ok"})

    async def metrics() -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    routes = APIRouter()
    routes.add_api_route("/health", health, methods=["GET"], name="health")
    routes.add_api_route("/metrics", metrics, methods=["GET"], name="metrics")
    return routes


def _exception_handlers(
    server: str,
) -> dict[int | type[Exception], Callable[[Request, Any], Coroutine[Any, Any, Response]]]:
    async def unrouted(request: Request, error: HTTPException) -> Response:
        message = f"a {server} has no call {request.method} {request.url.path}"
        return JsonResponse(ErrorBody(error="InvalidInputError", message=message), error.status_code)

    async def failed(request: Request, _: Exception) -> Response:
        """Return the response for an unexpected exception, which the log has."""
        name = "StoreUnavailableError" if request.method in {"GET", "HEAD"} else "OutcomeUnknownError"
        message = f"{request.method} {request.url.path}: internal error of the {server}; see its log"
        # uvicorn closes the connection after this response: the client must send no other request on it.
        return JsonResponse(ErrorBody(error=name, message=message), 500, {"connection": "close"})

    return {
        LockgateError: _refused,
        RequestValidationError: _malformed,
        ClientDisconnect: _gone,
        HTTPException: unrouted,
        Exception: failed,
    }


async def _refused(request: Request, error: LockgateError) -> Response:
    status, headers = status_of(error), {}
    if request.method == "PUT":
        headers["connection"] = "close"  # the rest of the upload is not read
    if isinstance(error, UnauthenticatedError):
        status, headers["www-authenticate"] = 401, "Bearer"
    elif isinstance(error, BodyTooLargeError):
        status = 413
    elif isinstance(error, IdleBodyError):
        status = 408
    return JsonResponse(body_of(error), status, headers)


async def _malformed(request: Request, error: RequestValidationError) -> Response:
    faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
    return await _refused(request, InvalidInputError(f"the request is not valid: {faults}; nothing was done"))


async def _gone(_: Request, __: ClientDisconnect) -> Response:
    return Response(status_code=_GONE)
