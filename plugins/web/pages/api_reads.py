"""The pages' reads: the same routes of the JSON API, called within the process.

A page shows what the API answers to the same user, and has no permissions of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

from pydantic import TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.types import Message

from lockgate.plugins.web.models.model import Model, Page
from lockgate.plugins.web.problems import Problem

Params = Mapping[str, str | int | None]
Answer = TypeVar("Answer", bound=Model)
Item = TypeVar("Item", bound=Model)

_CARRIED: Final = {"type", "asgi", "http_version", "scheme", "root_path", "client", "server", "state"}
_DROPPED: Final = {b"if-none-match", b"if-modified-since", b"range", b"content-length", b"content-type"}


class ProblemError(Exception):
    """The API answered with a problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.title)
        self.problem = problem


class ApiReads:
    """Reads of one page's request."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.unknown: list[str] = []

    async def one(self, kind: type[Answer], path: str, **params: str | int | None) -> Answer:
        """Return the answer of a route.

        Raises:
            ProblemError: The route answered with a problem.
        """
        found = await self._get(path, params)
        try:
            return kind.model_validate(found)
        except ValidationError:  # a job's id that is also the name of a route
            detail = f"{path}: there is no such thing; nothing was read"
            raise ProblemError(Problem(title="Not Found", status=404, detail=detail)) from None

    async def part(
        self, kind: type[Answer], path: str, *, may_be_absent: bool = False, **params: str | int | None
    ) -> Answer | None:
        """Return a part of the page, None if it cannot be read: `unknown` then has the reason.

        Args:
            kind: Type of the answer.
            path: Path of the route.
            may_be_absent: Whether a 404 is no loss.
            params: Parameters of the query.
        """
        try:
            return await self.one(kind, path, **params)
        except ProblemError as error:
            if not (may_be_absent and error.problem.status == 404):
                self._note(error.problem)
        return None

    async def page(self, kind: type[Item], path: str, **params: str | int | None) -> Page[Item]:
        """Return a page of a list; an empty one, and a reason in `unknown`, if it cannot be read."""
        try:
            found = await self._get(path, params)
        except ProblemError as error:
            self._note(error.problem)
            return Page[kind](items=())  # type: ignore[valid-type]
        if isinstance(found, list):
            found = {"items": found}
        page: Page[Item] = TypeAdapter(Page[kind]).validate_python(found)  # type: ignore[valid-type]
        self.unknown.extend(text for text in page.unknown if text not in self.unknown)
        return page

    def _note(self, problem: Problem) -> None:
        if problem.detail not in self.unknown:
            self.unknown.append(problem.detail)

    async def _get(self, path: str, params: Params) -> Any:
        outer = self._request.scope
        full = outer.get("root_path", "") + "/api/v1" + path
        query = urlencode({name: value for name, value in params.items() if value not in {None, ""}})
        scope = {name: value for name, value in outer.items() if name in _CARRIED} | {
            "method": "GET",
            "path": full,
            "raw_path": quote(full).encode(),
            "query_string": query.encode(),
            "headers": [(name, value) for name, value in outer["headers"] if name not in _DROPPED],
        }
        status, body = 500, bytearray()

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            body.extend(message.get("body", b""))

        try:
            await self._request.app(scope, receive, send)
        except Exception:  # the application has answered 500 and logged it; it raises for its server
            if not body:
                raise
        found = json.loads(bytes(body))
        if status != 200:
            raise ProblemError(Problem.model_validate(found))
        return found
