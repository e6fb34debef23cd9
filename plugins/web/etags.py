"""Entity tags: a client that refreshes a page which has not changed gets 304 and no body."""

from __future__ import annotations

import hashlib
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_TAGGED: Final = ("application/json", "text/html", "image/svg+xml")
_OK: Final = 200
_NOT_MODIFIED: Final = 304


class EtagMiddleware:
    """Adds a weak entity tag to complete answers to GET, and answers 304 to a client that has the body.

    A route that sets its own tag, such as one for static files, is passed on. So is a page that is sent in
    parts, which has a `Content-Encoding`: its beginning must not wait for its end.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and tag its answer."""
        if scope["type"] == "http" and scope["method"] in {"GET", "HEAD"}:
            send = _Tagged(Headers(scope=scope).get("if-none-match", ""), send)
        await self._app(scope, receive, send)


class _Tagged:
    """Sends the messages of one answer, whose body it collects to tag it."""

    def __init__(self, known: str, send: Send) -> None:
        self._known = known
        self._send = send
        self._start: Message | None = None
        self._body = bytearray()

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _is_tagged(message):
            self._start = message
            return
        if self._start is None:
            await self._send(message)
            return
        self._body += message.get("body", b"")
        if message.get("more_body", False):
            return
        tag = f'W/"{hashlib.sha256(self._body).hexdigest()[:32]}"'
        headers = MutableHeaders(scope=self._start)
        headers["etag"] = tag
        if self._known == "*" or tag in (known.strip() for known in self._known.split(",")):
            self._start["status"], self._body = _NOT_MODIFIED, bytearray()
            del headers["content-length"], headers["content-type"]
        await self._send(self._start)
        await self._send({"type": "http.response.body", "body": bytes(self._body)})


def _is_tagged(start: Message) -> bool:
    headers = Headers(raw=start["headers"])
    is_complete = start["status"] == _OK and "etag" not in headers and "content-encoding" not in headers
    return is_complete and headers.get("content-type", "").startswith(_TAGGED)
