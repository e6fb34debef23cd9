"""Responses with JSON: messages, errors, and what an application answers where no route does."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from lockgate.storage_core.errors import InvalidInputError, LockgateError
from lockgate.storage_core.http.problems import ErrorBody, body_of, status_of
from lockgate.storage_core.http.server.received_body import BodyTooLargeError, IdleBodyError
from lockgate.storage_core.http.server.request_token import UnauthenticatedError

Handler = Callable[[Request, Any], Coroutine[Any, Any, Response]]


class JsonResponse(Response):
    """A message as JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Encode a message."""
        return msgspec.json.encode(content)


def error_response(error: LockgateError) -> Response:
    """Return the response for an error."""
    status, headers = status_of(error), {}
    if isinstance(error, UnauthenticatedError):
        status, headers = 401, {"www-authenticate": "Bearer"}
    elif isinstance(error, BodyTooLargeError):
        status = 413
    elif isinstance(error, IdleBodyError):
        status = 408
    return JsonResponse(body_of(error), status, headers)


def exception_handlers(server: str) -> dict[int | type[Exception], Handler]:
    """Return the handlers of an application.

    Args:
        server: What messages call the server.
    """

    async def unrouted(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        message = f"a {server} has no call {request.method} {request.url.path}"
        return JsonResponse(ErrorBody(error="InvalidInputError", message=message), status)

    async def failed(request: Request, _: Exception) -> Response:
        """Return the response for an unexpected exception, which the log has."""
        name = "StoreUnavailableError" if request.method in {"GET", "HEAD"} else "OutcomeUnknownError"
        message = f"{request.method} {request.url.path}: internal error of the {server}; see its log"
        # uvicorn closes the connection after this response: the client must send no other request on it.
        return JsonResponse(ErrorBody(error=name, message=message), 500, {"connection": "close"})

    return {
        LockgateError: _refused,
        RequestValidationError: _malformed,
        HTTPException: unrouted,
        Exception: failed,
    }


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
