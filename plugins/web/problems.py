"""Errors as problem details (RFC 9457): a status, and a text with the input, the effect and the remedy."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from lockgate.plugins.web.answers import Model
from lockgate.plugins.web.middleware import ALWAYS
from lockgate.storage_core.errors import JobFailedError, LockgateError, MalformedRecordError, StateLostError
from lockgate.storage_core.http.problems import body_of, status_of

LOG: Final = logging.getLogger("lockgate.pages")
MEDIA_TYPE: Final = "application/problem+json"
BLANK: Final = "about:blank"

_STATUS: Final[tuple[tuple[type[LockgateError], int], ...]] = (
    (MalformedRecordError, 502),
    (StateLostError, 503),
    (JobFailedError, 409),
)
"""Statuses that differ from those of the blob server: a client of these routes has not written anything."""


class Problem(Model):
    """An error, as RFC 9457 describes it.

    Attributes:
        type: `urn:lockgate:error:` and a class of docs/reference/errors.md, or `about:blank`.
        title: Name of the status.
        detail: The input, the effect and the remedy; not meant for programs.
    """

    type: str = BLANK
    title: str
    status: int
    detail: str


def problem_of(error: Exception) -> Problem:
    """Return the problem details of an exception, without its text if Lockgate did not raise it."""
    match error:
        case LockgateError():
            status = next((number for kind, number in _STATUS if isinstance(error, kind)), status_of(error))
            return _problem(status, str(error), f"urn:lockgate:error:{body_of(error).error}")
        case RequestValidationError():
            faults = "; ".join(
                f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()
            )
            return _problem(422, f"the request is not valid: {faults}; nothing was done")
        case HTTPException():
            return _problem(error.status_code, str(error.detail))
    return _problem(500, "internal error; the server's log has it; nothing is known about its effect")


def logged_problem(request: Request, error: Exception) -> Problem:
    """Return the problem details of an exception that a route has raised; log one that is unexpected."""
    problem = problem_of(error)
    if problem.status == HTTPStatus.INTERNAL_SERVER_ERROR:
        LOG.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return problem


def answer_problems(app: FastAPI) -> None:
    """Answer every error of an application with problem details; its OpenAPI document describes them."""
    for kind in (LockgateError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _answer)
    app.openapi = lambda: _described(app)  # type: ignore[method-assign]


async def _answer(request: Request, error: Exception) -> Response:
    problem = logged_problem(request, error)
    headers = getattr(error, "headers", None) if isinstance(error, HTTPException) else None
    response = Response(problem.model_dump_json(), problem.status, headers, MEDIA_TYPE)
    if problem.status == HTTPStatus.INTERNAL_SERVER_ERROR:
        # Starlette answers an unexpected error outside the application's own middleware.
        response.headers.update({**ALWAYS, "cache-control": "no-store"})
    return response


def _problem(status: int, detail: str, type_: str = BLANK) -> Problem:
    return Problem(type=type_, title=HTTPStatus(status).phrase, status=status, detail=detail)


def _described(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document with problem details as the only body of an error."""
    if app.openapi_schema is None:
        found = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        schemas = found.setdefault("components", {}).setdefault("schemas", {})
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        schemas["Problem"] = Problem.model_json_schema()
        content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
        for operations in found.get("paths", {}).values():
            for operation in operations.values():
                # Its docstring goes on with what Python's callers need.
                operation["description"] = operation.get("description", "").partition("\n\n")[0]
                operation["responses"].pop("422", None)
                operation["responses"] |= {
                    "4XX": {"description": "The request was refused", "content": content},
                    "5XX": {"description": "Something does not answer", "content": content},
                }
        app.openapi_schema = found
    return app.openapi_schema
